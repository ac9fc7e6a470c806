"""Registered memory: symmetric_empty()."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from ranks import run_ranks


def allocations() -> list[str]:
    import ringreduce as rr

    faults = []
    with rr.init() as world:
        for shape, name in (((3, 5), "float32"), (7, "float64"), ((), "int8"), ((2, 0), "int16"), ([4], "bfloat16")):
            array = rr.symmetric_empty(shape, oracle.dtype(name))
            want = (shape,) if isinstance(shape, int) else tuple(shape)
            if array.shape != want or array.dtype != oracle.dtype(name) or not array.flags.carray:
                faults.append(f"{shape} {name}: {array.shape} {array.dtype}")
            if array.size and array.__array_interface__["data"][0] % 64:
                faults.append(f"{shape} {name}: not aligned")
            array[...] = 1
            result = rr.allreduce(array, op=rr.Sum)
            if not np.all(result == world.size):
                faults.append(f"{shape} {name}: {result}")
            rr.allreduce_(array, op=rr.Sum)
            if not np.all(array == world.size):
                faults.append(f"{shape} {name} in place: {array}")
        default = rr.symmetric_empty(3)
        if default.dtype != np.float32:
            faults.append(f"default dtype {default.dtype}")
        if world.size > 1:
            wide = rr.symmetric_empty(8, "f4") if world.rank else rr.symmetric_empty((2, 2), "f8")
            wide[...] = 0  # shapes and dtypes may differ, bytes may not
        own = rr.symmetric_empty(5, "i8")
        own[...] = world.rank
        rr.barrier()
        if not np.all(own == world.rank):
            faults.append("regions of different ranks overlap")
        rr.barrier()
    own[...] += 1  # plain memory after shutdown
    return faults + ([] if np.all(own == world.rank + 1) else ["lost after shutdown"])


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_allocations(size: int) -> None:
    assert run_ranks(allocations, size) == [[]] * size


def mismatches() -> list[str]:
    import ringreduce as rr

    texts = []
    with rr.init() as world:
        wrong: list[tuple[Any, str]] = [(world.rank + 1, "f4"), (-1, "f4"), (2, "c8")]
        wrong += [(shape, "f4") for shape in ((2.7,), "12", 2.5, None)]
        for shape, dtype in wrong:
            try:
                rr.symmetric_empty(shape, dtype)
            except rr.Error as error:
                texts.append(f"{type(error).__name__}: {error}")
        texts.append(str(rr.allreduce(rr.symmetric_empty(1, "f4") * 0 + 1, op=rr.Sum)[0]))
    return texts


def test_mismatched_sizes_are_errors_and_leave_the_job_usable() -> None:
    for texts in run_ranks(mismatches, 2):
        assert texts[0].startswith("MismatchError: ")
        assert "(rank 0: 4, rank 1: 8)" in texts[0]
        assert texts[1].startswith("InvalidArgumentError: symmetric_empty: negative dimensions")
        assert texts[2].startswith("InvalidArgumentError: Tensor type complex64")
        for text, shape in zip(texts[3:-1], ("(2.7,)", "'12'", "2.5", "None"), strict=True):
            assert text.startswith(f"InvalidArgumentError: symmetric_empty: {shape} is no shape: give an int")
        assert texts[-1] == "2.0"


def in_place_without_a_copy(nbytes: int) -> dict[str, int]:
    """What the counters say of ten all-reduces of registered memory."""
    import ringreduce as rr

    with rr.init() as world:
        array = rr.symmetric_empty(nbytes // 4, "f4")
        array[...] = world.rank
        rr.allreduce_(array)
        before = rr.stats()
        for _ in range(10):
            rr.allreduce_(array)
        after = rr.stats()
        return {name: after[name] - before.get(name, 0) for name in after}


def more_than_there_can_be() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        try:
            rr.symmetric_empty(1 << 62, "i1")
        except rr.Error as error:
            return [str(error), str(rr.allreduce(np.ones(1), op=rr.Sum)[0] - world.size)]
        return ["no error"]


def test_memory_that_cannot_be_made_is_an_error_on_all_ranks() -> None:
    """One rank makes it: the others are told why they get none, and do not wait for it until init()'s time is over."""
    first, *others = run_ranks(more_than_there_can_be, 3)
    why = f"making a memory file of {3 << 62} bytes: Invalid argument (errno 22)"
    assert first == [why, "0.0"]
    assert others == [[f"[rendezvous] rank {rank}/3: told by rank 0: {why}", "0.0"] for rank in (1, 2)]


def test_registered_memory_is_reduced_in_place_without_a_copy() -> None:
    for grown in run_ranks(in_place_without_a_copy, 2, args=(4 << 20,)):
        assert grown["bytes_copied"] == 0
        assert grown["operations"] == 10
        assert grown["direct"] == 10


def lifetimes() -> list[str]:
    """Arrays die in another order on every rank; sets have their own; memory outlives a job and serves the next."""
    import gc
    import os

    import ringreduce as rr

    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:" in line for line in maps)

    faults = []
    rr.init()
    rank, size = rr.rank(), rr.size()
    fds = 0
    for round_ in range(30):
        arrays = [rr.symmetric_empty(10_000, "f4") for _ in range(3)]
        for array in arrays:
            array[...] = rank + 1
            if not np.all(rr.allreduce_(array, op=rr.Sum) == size * (size + 1) / 2):
                faults.append(f"round {round_}")
        piece = arrays[rank % 3][5:10]
        del arrays, array
        if not np.all(piece == size * (size + 1) / 2):
            faults.append("a slice did not keep its memory")
        del piece
        gc.collect()
        if round_ == 5:
            fds, maps = len(os.listdir("/proc/self/fd")), mappings()
    if len(os.listdir("/proc/self/fd")) > fds:
        faults.append("descriptors leak")
    rr.allreduce(1)
    if mappings() > maps + 6 * size:  # a peer's mapping may wait for the next operation to be dropped
        faults.append(f"mappings leak: {maps} -> {mappings()}")
    kept = rr.symmetric_empty(1000, "f8")
    single = rr.add_process_set([size - 1])
    if single.included():
        own = rr.symmetric_empty(100, "f8", process_set=single)
        own[...] = 2
        if not np.all(rr.allreduce(own, op=rr.Sum, process_set=single) == 2):
            faults.append("memory of a set")
    one = own if single.included() else np.ones(100)
    if not np.all(rr.allreduce(one, op=rr.Sum) == size + 1):
        faults.append("memory of a set in the world")
    rr.shutdown()
    rr.init()
    kept[...] = rank
    if not np.all(rr.allreduce_(kept, op=rr.Sum) == sum(range(size))):
        faults.append("after init() anew")
    rr.shutdown()
    return faults


@pytest.mark.parametrize("size", [2, 3])
def test_lifetimes(size: int) -> None:
    assert run_ranks(lifetimes, size) == [[]] * size


def survivor() -> Any:
    import os
    import signal

    import ringreduce as rr

    rr.init()
    array = rr.symmetric_empty(1000, "f8")
    array[...] = 3
    rr.allreduce_(array, op=rr.Max)
    if rr.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        rr.allreduce_(array, op=rr.Sum)
    except rr.PeerLostError:
        array[...] = 4
        return float(array.sum())
    return None


def test_memory_outlives_a_peer() -> None:
    from ranks import start_ranks

    with start_ranks(survivor, 2) as job:
        assert job.wait()[0].value == 4000.0


def gather_in_place() -> None:
    """An all-gather whose output is given: registered or not, with unequal shares, this rank's part being its input."""
    import ringreduce as rr

    with rr.init() as world:
        counts = [3 + rank for rank in range(world.size)]
        start = sum(counts[: world.rank])
        group = rr.global_process_set.group
        wanted = np.concatenate([np.arange(count) + 10.0 * rank for rank, count in enumerate(counts)])
        for whole in (rr.symmetric_empty(sum(counts), "f8"), np.empty(sum(counts))):
            whole[...] = -1
            mine = whole[start : start + counts[world.rank]]
            mine[...] = np.arange(mine.size) + 10.0 * world.rank
            before = rr.stats()
            work = group.allgather_async(mine, "here", whole)
            work.wait()
            assert work.output is None
            assert work.counts == counts
            assert np.array_equal(whole, wanted)
            copied = rr.stats()["bytes_copied"] - before["bytes_copied"]
            assert (copied == 0) is (rr.stats()["direct"] > before["direct"])
        other = np.zeros(1)  # too small: the operation has an output of its own
        work = group.allgather_async(mine, "there", other)
        work.wait()
        assert np.array_equal(np.frombuffer(work.output or b""), wanted)
        assert other[0] == 0


@pytest.mark.parametrize("algorithm", ["auto", "two_shot"])
def test_an_all_gather_can_be_given_its_output(algorithm: str) -> None:
    run_ranks(gather_in_place, 3, env={"RINGREDUCE_ALGORITHM": algorithm})
