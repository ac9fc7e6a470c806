"""`ringreduce tune`: what it prints and writes, what it refuses, and what its predictions are made of."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from processes import completed
from ranks import clean_environment

from ringreduce import plan
from ringreduce.bench.link import Link
from ringreduce.tuning.choosing import CHUNKS, EAGER_SIZES, LEAST_EAGER, ROUNDS, choose
from ringreduce.tuning.costs import Costs, Curve, HostCosts
from ringreduce.tuning.model import predicted_s
from ringreduce.tuning.reduction import ALGORITHMS, NBYTES

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
    assert set(private) == {"one_shot", "two_shot", *ALGORITHMS}
    assert {algorithm for _, memory, algorithm, *_ in rows if memory == "registered"} == {"direct"}
    for _, _, _, predicted, measured, ratio in rows:
        assert float(predicted) > 0
        assert float(ratio) == pytest.approx(float(measured) / float(predicted), rel=0.03, abs=0.006)
    assert len(written.measured["reductions"]) == len(rows)
    env = clean_environment() | {"RINGREDUCE_PLAN": str(path)}
    bench = [sys.executable, "-m", "ringreduce", "bench", "allreduce", "-np", "2", "--sizes", "8,256K", "--iters", "5"]
    assert "0 OK" in completed(bench, env=env, check=True).stdout
    again = completed([*TUNE, "-np", "2"], env=env)
    assert again.returncode == 2
    assert "unset RINGREDUCE_PLAN" in again.stderr


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
        (["-np", "0"], "must be at least 1"),
    ):
        done = completed([*TUNE, *words], env=env)
        assert done.returncode == 2
        assert text in done.stderr
    done = completed([*TUNE, "-np", "1", "-o", tmp_path / "no" / "plan.json"], env=env)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


class FakeTimer:
    """Of a machine whose times are known: by chunk, and by size from the slots and from the log."""

    def __init__(self, by_chunk: dict[int, float], slots: dict[int, float], log: float) -> None:
        self.now = (0, 0)
        self.calls = 0
        self._by_chunk, self._slots, self._log = by_chunk, slots, log

    def set_sizes(self, chunk_nbytes: int, eager_nbytes: int) -> None:
        self.now = (chunk_nbytes, eager_nbytes)

    def seconds(self, nbytes: int, calls: int, collective: str = "allreduce") -> float:
        self.calls += 1
        chunk, eager = self.now
        if nbytes > max(EAGER_SIZES):
            return self._by_chunk[chunk]
        return self._slots[nbytes] if nbytes <= eager else self._log


CASES = {
    "the fastest chunk": ([9, 7, 8, 9, 9], [1, 1, 1, 9], (128 << 10, 8 << 10)),
    "the default where it is about the fastest": ([7.9, 9, 8, 9, 9], [1, 1, 1, 9], (256 << 10, 8 << 10)),
    "slots that are always faster": ([9, 9, 8, 9, 9], [1, 1, 1, 1], (256 << 10, 16 << 10)),
    "slots that are never faster": ([9, 9, 8, 9, 9], [9, 9, 9, 9], (256 << 10, 1 << 10)),
    "the default where both are alike": ([9, 9, 8, 9, 9], [1, 1, 5.05, 4.95], (256 << 10, 8 << 10)),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes_are_chosen_by_what_was_measured(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chunks, slots, expected = CASES[case]
    timer = FakeTimer(dict(zip(CHUNKS, chunks, strict=True)), dict(zip(EAGER_SIZES, slots, strict=True)), 5.0)
    monkeypatch.setattr(
        "ringreduce.tuning.sizes.Sizes.set", lambda one: timer.set_sizes(one.chunk_nbytes, one.eager_nbytes)
    )
    sizes, choices = choose(timer, (4,), 1e6)  # type: ignore[arg-type]
    assert (sizes.chunk_nbytes, sizes.eager_nbytes) == expected
    assert timer.now == expected
    assert [(one.default, one.chosen) for one in choices] == list(zip((256 << 10, 8 << 10), expected, strict=True))


def test_hosts_keep_their_eager_limit_and_slow_links_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = FakeTimer(dict(zip(CHUNKS, [9, 7, 8, 9, 9], strict=True)), {}, 5.0)
    monkeypatch.setattr(
        "ringreduce.tuning.sizes.Sizes.set", lambda one: timer.set_sizes(one.chunk_nbytes, one.eager_nbytes)
    )
    for seconds, chunk in ((1e6, 128 << 10), (10.0, 256 << 10)):
        timer.calls = 0
        sizes, choices = choose(timer, (2, 2), seconds)  # type: ignore[arg-type]
        assert (sizes.chunk_nbytes, sizes.eager_nbytes) == (chunk, 8 << 10)
        assert [one.name for one in choices] == (["chunk"] if seconds > 1e3 else [])
        assert timer.calls == (1 + ROUNDS * len(CHUNKS) if seconds > 1e3 else 1)


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
