"""`ringreduce tune`: what it prints and writes, what it refuses, and what its predictions are made of."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import completed
from ranks import clean_environment

from ringreduce import plan
from ringreduce.bench.link import Link
from ringreduce.errors import InvalidArgumentError
from ringreduce.plan import Plan
from ringreduce.tuning import cli
from ringreduce.tuning.choosing import CHUNKS, EAGER_SIZES, LEAST_EAGER, choose_chunk, choose_eager
from ringreduce.tuning.costs import Costs, Curve, HostCosts
from ringreduce.tuning.model import predicted_s
from ringreduce.tuning.reduction import ALGORITHMS, NBYTES
from ringreduce.tuning.sizes import Sizes, default_sizes

TUNE = [sys.executable, "-m", "ringreduce", "tune"]
FLAT = Curve((1,), (1e-9,))  # 1 GB/s
HOST = HostCosts(1e-6, 2e-6, 10e-6, FLAT, FLAT, FLAT, FLAT)
ROW = re.compile(r"^ +(\d+[KM]?)  (private|registered) +(\w+) +(\S+) +(\S+) +(\S+)$", re.MULTILINE)


def test_two_ranks_are_measured_and_the_plan_serves(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = completed([*TUNE, "-np", "2", "--bind", "none", "-o", path], env=clean_environment(), check=True)
    assert "tune: 2 ranks on one host" in done.stdout
    assert f"RINGREDUCE_PLAN={path}, on all ranks" in done.stdout
    written = plan.read(str(path))
    assert written.ranks == (2,)
    assert written.processors == (plan.processor(),)
    assert written.chunk_nbytes in CHUNKS
    assert written.eager_nbytes in (LEAST_EAGER, *EAGER_SIZES)
    assert written.hash in done.stdout
    rows = ROW.findall(done.stdout)
    private = [algorithm for _, memory, algorithm, *_ in rows if memory == "private"]
    assert private[0] == "one_shot"
    # On a machine that is full, large sizes are left out.
    assert set(private) - {"two_shot"} == {"one_shot", *ALGORITHMS}
    assert {algorithm for _, memory, algorithm, *_ in rows if memory == "registered"} <= {"direct"}
    for _, _, _, predicted, measured, ratio in rows:
        assert float(predicted) > 0
        assert float(ratio) == pytest.approx(float(measured) / float(predicted), rel=0.03, abs=0.006)
    assert len(written.measured["reductions"]) == len([row for row in rows if row[2] not in ALGORITHMS])
    env = clean_environment() | {"RINGREDUCE_PLAN": str(path)}
    bench = [sys.executable, "-m", "ringreduce", "bench", "allreduce", "-np", "2", "--sizes", "8,256K", "--iters", "5"]
    assert "0 OK" in completed(bench, env=env, check=True).stdout
    again = completed([*TUNE, "-np", "2"], env=env)
    assert again.returncode == 2
    assert "unset RINGREDUCE_PLAN" in again.stderr


def test_a_reader_that_has_gone_takes_nothing_from_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    command = [*TUNE, "-np", "2", "--bind", "none", "-o", str(path)]
    pipe = f"{shlex.join(command)} | true; exit ${{PIPESTATUS[0]}}"
    done = completed(["bash", "-c", pipe], env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr  # a warning that a rank is late may be there
    assert plan.read(str(path)).ranks == (2,)


def test_one_rank_has_nothing_to_predict() -> None:
    done = completed([*TUNE, "-np", "1"], env=clean_environment(), check=True)
    rows = ROW.findall(done.stdout)
    assert [row[0] for row in rows[:2]] == ["8", "64"]
    assert {row[3] for row in rows} == {"-"}


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    env = clean_environment()
    for words, text in (
        (["-H", "a:2,b:2", "-np", "3"], "-np 3, and the hosts have 4 slots"),
        (["--ssh-args=-v"], "is for other hosts"),
        (["-H", "localhost:2", "-i", "key"], "--ssh-identity-file is for other hosts, and this is the only one"),
        (["-np", "0"], "must be at least 1"),
    ):
        done = completed([*TUNE, *words], env=env)
        assert done.returncode == 2
        assert text in done.stderr
    done = completed([*TUNE, "-np", "1", "-o", tmp_path / "no" / "plan.json"], env=env)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def plan_for_people(binding: list[list[int]]) -> dict[str, Any]:
    facts = {"ringreduce": "0.1.0", "date": "2026-11-29", "isa": "avx512", "knobs": {}, "binding": binding}
    return cli._for_people(facts, [], [])


def test_a_plan_says_shortly_where_ranks_were(tmp_path: Path) -> None:
    assert plan_for_people([[0, 1, 2, 5], [0, 1, 2, 5], [7]])["binding"] == {"0-2, 5": "0-1", "7": "2"}
    for binding in ([list(range(128))] * 1024, [[cpu, cpu + 128] for cpu in range(4096)]):
        ranks = (len(binding),)
        one = Plan(ranks, ("a processor",), 1 << 20, 8 * KIB, plan_for_people(binding))
        path = tmp_path / "plan.json"
        path.write_text(one.text())
        assert plan.read(str(path)) == one


def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RINGREDUCE_")]:
        monkeypatch.delenv(name)


def test_nothing_is_there_to_be_left_while_it_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a signal that ends it, for instance."""
    without_launcher(monkeypatch)
    files = []

    def measured(*_: Any) -> Costs:
        files.append(list(tmp_path.iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.costs, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        cli.run(str(tmp_path / "plan.json"))
    assert files == [[]]


def test_a_plan_that_init_would_refuse_gets_no_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cli, "FILE_NBYTES", 100)
    without_launcher(monkeypatch)
    with pytest.raises(InvalidArgumentError, match=r"the plan has \d+ bytes, and init\(\) reads 100 at most"):
        cli.run(str(tmp_path / "plan.json"))
    assert list(tmp_path.iterdir()) == []


class FakeTimer:
    """Of a machine whose times are known: by chunk, and by size from the slots and from the log."""

    def __init__(self, by_chunk: list[float], slots: list[float], log: float) -> None:
        self.calls = 0
        self._now = Sizes()
        self._by_chunk = dict(zip(CHUNKS, by_chunk, strict=True))
        self._slots = dict(zip(EAGER_SIZES, slots, strict=True))
        self._log = log

    def set(self, sizes: Sizes) -> None:
        self._now = sizes

    def seconds(self, nbytes: int, calls: int) -> float:
        self.calls += calls
        if nbytes > max(EAGER_SIZES):
            return self._by_chunk[self._now.chunk_nbytes]
        return self._slots[nbytes] if nbytes <= self._now.eager_nbytes else self._log


KIB = 1024
CHUNK_CASES = {
    "the fastest": ([9, 7, 8, 9, 9], 128, 8 / 7),
    "the default where it is about the fastest": ([7.9, 9, 8, 9, 9], 256, None),
    "the largest": ([9, 9, 8, 9, 6], 1024, 8 / 6),
}
EAGER_CASES: dict[str, tuple[list[float], int, float | None]] = {
    "the default": ([1, 1, 1, 9], 8, None),
    "slots that are always faster": ([1, 1, 1, 1], 16, 5.0),
    "slots that are never faster": ([9, 9, 9, 9], 1, 9 / 5),
    "slower at the default": ([1, 1, 6, 9], 4, 6 / 5),
    "slower below the default, which says nothing of it": ([5.2, 1, 1, 1], 16, 5.0),
    "the default where both are alike": ([1, 1, 5.05, 4.95], 8, None),
}


@pytest.mark.parametrize("case", CHUNK_CASES)
def test_the_chunk_is_chosen_by_what_was_measured(case: str) -> None:
    times, chunk, gain = CHUNK_CASES[case]
    for seconds in (1e6, 0.001):
        sizes, choice = choose_chunk(FakeTimer(times, [1, 1, 1, 1], 5), Sizes(), seconds)
        assert sizes == Sizes(chunk_nbytes=chunk * KIB)
        assert (choice.default, choice.chosen) == (256 * KIB, chunk * KIB)
        assert choice.gain == (None if gain is None else pytest.approx(gain))


def test_slow_ranks_have_fewer_turns_for_the_chunk() -> None:
    fast, slow = FakeTimer([8] * 5, [1] * 4, 5), FakeTimer([8] * 5, [1] * 4, 5)
    choose_chunk(fast, Sizes(), 1e6)
    choose_chunk(slow, Sizes(), 8 * 5.0)
    assert (fast.calls, slow.calls) == (5 + 5 * 5 * 5, 5 + 3 * 5)


@pytest.mark.parametrize("case", EAGER_CASES)
def test_the_eager_limit_is_chosen_by_what_was_measured(case: str) -> None:
    slots, limit, gain = EAGER_CASES[case]
    sizes, choice = choose_eager(FakeTimer([1] * 5, slots, 5), Sizes())
    assert sizes == Sizes(eager_nbytes=limit * KIB)
    assert (choice.default, choice.chosen) == (8 * KIB, limit * KIB)
    assert choice.gain == (None if gain is None else pytest.approx(gain))


def test_where_ranks_share_cores_the_eager_limit_is_the_one_in_force() -> None:
    for ranks, cores, limit in (([2], 2, 8), ([3], 2, 16), ([2, 2], 8, 16), ([2, 2], 2, 16)):
        group: Any = SimpleNamespace(sizes=lambda: (64 * KIB, 16 * KIB))
        assert default_sizes(group, ranks, cores) == Sizes(eager_nbytes=limit * KIB)
    sizes, choice = choose_eager(FakeTimer([1] * 5, [1, 1, 1, 1], 5), Sizes(eager_nbytes=16 * KIB))
    assert sizes.eager_nbytes == 16 * KIB
    assert (choice.default, choice.chosen, choice.gain) == (16 * KIB, 16 * KIB, None)


def test_ranks_of_one_core_are_compared_with_what_they_would_have() -> None:
    cpu = min(os.sched_getaffinity(0))
    one_cpu = f"import os; os.sched_setaffinity(0, {{{cpu}}}); os.execv({sys.executable!r}, {[*TUNE, '-np', '2']!r})"
    done = completed([sys.executable, "-c", one_cpu], env=clean_environment(), check=True)
    limits = re.search(r"^eager limit +(\w+) +(\w+) +(\S+)$", done.stdout, re.MULTILINE)
    assert limits is not None, done.stdout
    assert limits[1] == "16K"


def test_predictions_on_one_host() -> None:
    costs = Costs((4,), host=HOST)
    assert predicted_s(costs, "one_shot", 1000) == pytest.approx(2e-6 + 4e-6)
    assert predicted_s(costs, "direct", 1_000_000) == pytest.approx(10e-6 + 1e-3)
    assert predicted_s(costs, "two_shot", 1_000_000) == pytest.approx(10e-6 + 2.5e-3)
    assert predicted_s(costs, "ring", 1_000_000) == pytest.approx(10e-6 + 6e-6 + 3e-3)
    assert predicted_s(costs, "recursive_doubling", 1_000_000) == pytest.approx(10e-6 + 2 * (1e-6 + 2e-3))
    assert predicted_s(costs, "tree", 1) is None
    assert predicted_s(Costs((1,)), "one_shot", 8) is None


def test_predictions_between_hosts() -> None:
    link = Link(nbytes_per_s=1e8, one_way_s=20e-6)
    costs = Costs((2, 2), barrier_s=100e-6, within=FLAT, link=link)
    assert predicted_s(costs, "one_shot", 8) == pytest.approx(100e-6 + 4 * 8e-8)
    # Pairwise: what crosses the link comes after what is done within; on the ring one hides the other.
    assert predicted_s(costs, "hierarchical", 100_000) == pytest.approx(100e-6 + 100e-6 + 1e-3 + 1e-4)
    assert predicted_s(costs, "hierarchical", 2_000_000) == pytest.approx(100e-6 + 2 * 50e-6 + 20e-3)
    assert predicted_s(costs, "ring", 1_000_000) == pytest.approx(100e-6 + 6 * 50e-6 + 15e-3)
    assert predicted_s(costs, "recursive_doubling", 1_000_000) == pytest.approx(100e-6 + 50e-6 + 20e-3)
    assert predicted_s(Costs((2, 2), barrier_s=1e-4), "ring", 8) is None


def test_every_size_is_a_whole_number_of_floats() -> None:
    assert all(nbytes % 4 == 0 for nbytes in NBYTES)
