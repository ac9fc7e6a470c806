"""Plan files: what init() takes of them, which ones it refuses, and that they never show in a result."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from ranks import run_ranks, start_ranks

from ringreduce import _core, plan
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job import places
from ringreduce.plan import Plan

KIB = 1024
CHUNKS = range(4096, _core.CHUNK_LARGEST + 1, 64)
EAGERS = range(1, _core.EAGER_LARGEST + 1)
THREE = Plan((3,), ("a processor",), 96 * KIB, 3 * KIB, {"by": "a test"})


def written(folder: Path, one: Plan, name: str = "plan.json") -> str:
    path = folder / name
    path.write_text(one.text())
    return str(path)


def changed(**fields: Any) -> dict[str, Any]:
    """A plan's document with other fields and the hash of these: only they are wrong."""
    document = json.loads(THREE.text()) | fields
    content = {name: value for name, value in document.items() if name != "hash"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    document["hash"] = hashlib.sha256(text.encode()).hexdigest()[: plan.HASH_CHARS]
    return document


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert plan.read(written(tmp_path, THREE)) == THREE
    across = Plan((2, 1), ("one", "another"), 1 << 20, 0)
    assert plan.read(written(tmp_path, across)) == across
    assert len(THREE.hash) == plan.HASH_CHARS
    assert THREE.hash != replace(THREE, chunk_nbytes=128 * KIB).hash


BAD = {
    "no JSON": "chunk = 65536",
    "half of a file": THREE.text()[:-20],
    "bytes that are no text": b"\xff\xfe{}",
    "a list": [],
    "no format": {"hash": THREE.hash},
    "another format": changed(format=2),
    "a field too few": {name: value for name, value in changed().items() if name != "ranks"},
    "a field too many": changed(spin=1),
    "no ranks": changed(ranks=[]),
    "half a rank": changed(ranks=[1.5]),
    "a format that is true": changed(format=True),
    "too many ranks": changed(ranks=[10**40]),
    "a processor too few": changed(ranks=[2, 1], eager_nbytes=0),
    "a processor that moves the cursor": changed(processors=["\x1b[2J"]),
    "a chunk of fewer lines than ranks": changed(ranks=[100], chunk_nbytes=4096),
    "something said twice": THREE.text().replace('"format": 1', '"format": 1, "format": 1'),
    "ranks that are true": changed(ranks=[True]),
    "a processor that is a number": changed(processors=[3]),
    "a chunk that is too small": changed(chunk_nbytes=4032),
    "a chunk that is too large": changed(chunk_nbytes=(1 << 20) + 64),
    "a chunk across lines": changed(chunk_nbytes=65537),
    "a chunk that is a text": changed(chunk_nbytes="65536"),
    "a chunk that is true": changed(chunk_nbytes=True),
    "an eager limit that is too large": changed(eager_nbytes=16385),
    "an eager limit of 0 on one host": changed(eager_nbytes=0),
    "an eager limit on two hosts": changed(ranks=[2, 2], eager_nbytes=4096),
    "measured nothing": changed(measured=None),
    "a size changed by hand": changed() | {"chunk_nbytes": 128 * KIB},
    "much nesting": "[" * 100_000,
    "too much": " " * (plan.FILE_NBYTES + 1),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_plan_is_refused_and_named(what: str, tmp_path: Path) -> None:
    content = BAD[what]
    path = tmp_path / "bad.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InvalidArgumentError, match=rf"RINGREDUCE_PLAN={path}: is no plan of `ringreduce tune`: "):
        plan.read(str(path))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name, why in (("absent.json", "No such file"), (".", "regular file|directory"), ("fifo", "no regular file")):
        with pytest.raises(InvalidArgumentError, match=f"RINGREDUCE_PLAN={tmp_path / name}: .*{why}"):
            plan.read(str(tmp_path / name))


def test_hosts_with_other_plans_do_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    across = Plan((1, 1), ("one", "another"), 64 * KIB, 0)
    monkeypatch.setattr(plan, "_last", None)
    monkeypatch.setenv("RINGREDUCE_PLAN", written(tmp_path, across))
    mine = places.own_record(0, 2)
    monkeypatch.setenv("RINGREDUCE_PLAN", written(tmp_path, replace(across, chunk_nbytes=128 * KIB), "other.json"))
    theirs = places.own_record(1, 2)
    places.check_agreement([mine, mine], mine, 2, "here")
    with pytest.raises(MismatchError, match=f"RINGREDUCE_PLAN is {across.hash} on this rank.* on rank 1"):
        places.check_agreement([mine, theirs], mine, 2, "here")
    monkeypatch.delenv("RINGREDUCE_PLAN")
    with pytest.raises(MismatchError, match="RINGREDUCE_PLAN is not set on this rank"):
        places.check_agreement([mine, theirs], places.own_record(0, 2), 2, "here")
    monkeypatch.setenv("RINGREDUCE_PLAN", str(tmp_path / "absent.json"))
    with pytest.raises(MismatchError, match="RINGREDUCE_PLAN is unusable on this rank"):
        places.check_agreement([mine, theirs], places.own_record(0, 2), 2, "here")


def sizes() -> list[tuple[int, int]]:
    """Of the job, and of the job of the next init() without a plan."""
    import ringreduce

    found = []
    for _ in range(2):
        with ringreduce.init():
            found.append(ringreduce.global_process_set.group.sizes())
        os.environ["RINGREDUCE_PLAN"] = ""
    return found


def test_a_jobs_sizes_are_those_of_its_plan(tmp_path: Path) -> None:
    env = {"RINGREDUCE_PLAN": written(tmp_path, THREE), "RINGREDUCE_CACHE": str(tmp_path)}
    for planned, usual in run_ranks(sizes, 3, env=env):
        assert planned == (96 * KIB, 3 * KIB)
        assert usual != planned


def test_a_plan_for_other_ranks_is_an_error_on_every_rank(tmp_path: Path) -> None:
    with start_ranks(sizes, 2, env={"RINGREDUCE_PLAN": written(tmp_path, THREE)}) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "InvalidArgumentError", outcome
            assert "was measured for 3 ranks on one host, and this job has 2 ranks on one host" in str(outcome.error)


def with_own_plan(paths: list[str]) -> None:
    """init() with a plan of this rank's."""
    import ringreduce

    os.environ["RINGREDUCE_PLAN"] = paths[int(os.environ["RINGREDUCE_RANK"])]
    ringreduce.init()


def test_ranks_with_other_plans_do_not_begin(tmp_path: Path) -> None:
    one, other = written(tmp_path, THREE), written(tmp_path, replace(THREE, eager_nbytes=64), "other.json")
    with start_ranks(with_own_plan, 3, args=([one, one, other],)) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "MismatchError", outcome
            assert f"with plan {THREE.hash} on rank 0" in str(outcome.error)
            assert "on rank 2: give all ranks the same file" in str(outcome.error)


@pytest.mark.parametrize("what", ["absent", "of other ranks"])
def test_a_rank_without_a_plan_that_it_can_use_says_why_and_the_others_name_it(what: str, tmp_path: Path) -> None:
    one, unfit = written(tmp_path, THREE), written(tmp_path, replace(THREE, ranks=(4,)), "unfit.json")
    other = unfit if what == "of other ranks" else str(tmp_path / "absent.json")
    with start_ranks(with_own_plan, 3, args=([one, other, one],)) as ranks:
        first, second, third = ranks.wait(SOON_S)
    assert second.kind == "InvalidArgumentError", second
    assert ("was measured for 4 ranks" if other == unfit else "cannot be read") in str(second.error)
    for outcome in (first, third):
        assert outcome.kind == "MismatchError", outcome
        assert "rank 1 has no plan that it can use, and says why" in str(outcome.error)


def on_another_processor() -> list[str]:
    """The warnings of init()."""
    import ringreduce

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ringreduce.init()
    return [str(one.message) for one in said if one.filename == __file__]


def test_a_plan_of_another_processor_is_taken_with_a_warning_on_one_rank(tmp_path: Path) -> None:
    first, *others = run_ranks(on_another_processor, 3, env={"RINGREDUCE_PLAN": written(tmp_path, THREE)})
    (text,) = first
    assert "was measured on a processor, and " in text
    assert plan.processor() in text
    assert others == [[], []]
    here = replace(THREE, processors=(plan.processor(),))
    assert run_ranks(on_another_processor, 3, env={"RINGREDUCE_PLAN": written(tmp_path, here)}) == [[], [], []]


def digests(paths: list[str]) -> list[str]:
    """By plan: a hash of all results."""
    import ringreduce

    found = []
    for path in paths:
        os.environ["RINGREDUCE_PLAN"] = path
        with ringreduce.init() as world:
            random = np.random.default_rng(world.rank)
            digest = hashlib.sha256()
            for count in (1, 5, 300, 1500, 3000, 20_000, 300_000):
                for dtype in (np.float32, np.float16, np.float64):
                    x = random.standard_normal(count).astype(dtype)
                    digest.update(ringreduce.allreduce(x, op=ringreduce.Sum).tobytes())
                    digest.update(ringreduce.allreduce(x, op=ringreduce.Average, prescale_factor=0.3).tobytes())
                x = random.standard_normal((3 * count, 2)).astype(np.float32)
                digest.update(ringreduce.reducescatter(x, op=ringreduce.Sum).tobytes())
                digest.update(ringreduce.allgather(x).tobytes())
                digest.update(ringreduce.broadcast(x, 1).tobytes())
            handles = [ringreduce.allreduce_async(random.standard_normal(700), name=str(i)) for i in range(20)]
            for handle in handles:
                digest.update(ringreduce.synchronize(handle).tobytes())
            # Results differ by rank, so what is compared is this rank's in one plan and another.
            found.append(digest.hexdigest())
    return found


def test_no_plan_shows_in_the_bits_of_a_result(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    paths = [""]
    for number in range(25):
        chunk, eager = int(random.choice(CHUNKS)), int(random.choice(EAGERS))
        one = Plan((3,), (plan.processor(),), chunk, eager)
        paths.append(written(tmp_path, one, f"{number}.json"))
    for found in run_ranks(digests, 3, args=(paths,)):
        assert len(found) == len(paths)
        assert len(set(found)) == 1


def torch_groups(folder: str) -> float:
    """A sum in a group of two of the ranks; on the others 0."""
    import torch
    import torch.distributed as dist

    import ringreduce.torch.distributed  # noqa: F401  # registers the backend

    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    dist.init_process_group("ringreduce", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    pair = dist.new_group([0, 1])
    x = torch.zeros(1)
    if rank < 2:
        x += rank + 1
        dist.all_reduce(x, group=pair)
    dist.destroy_process_group()
    return float(x)


def test_a_group_of_some_ranks_goes_without_the_plan_of_all(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    here = replace(THREE, processors=(plan.processor(),))
    env = {"RINGREDUCE_PLAN": written(tmp_path, here)}
    assert run_ranks(torch_groups, 3, args=(str(tmp_path),), env=env) == [3.0, 3.0, 0.0]


def test_the_default_group_refuses_a_plan_of_other_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with start_ranks(
        torch_groups, 2, args=(str(tmp_path),), env={"RINGREDUCE_PLAN": written(tmp_path, THREE)}
    ) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "InvalidArgumentError", outcome
            assert "and this job has 2 ranks on one host" in str(outcome.error)
