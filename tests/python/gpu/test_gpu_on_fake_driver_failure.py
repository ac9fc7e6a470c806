"""Calls on GPU arrays that go wrong, on the fake CUDA driver: nothing hangs, and the errors say what happened."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from fake_cuda import Array, Gpu
from fake_gpu_ranks import coming, environment, memory, on, whole
from kills import survivors
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks


def mistakes() -> None:
    import ringreduce as rr

    with rr.init() as world:
        gpu = Gpu()
        stream, rank = gpu.stream(), world.rank
        # Ranks that do not fit together: told where the handle is asked; the job goes on.
        x, gate = coming(np.ones(10 + rank), stream), stream.gate()
        handle = rr.allreduce_async(x, name="shapes")
        with pytest.raises(rr.TimeoutError):
            handle.wait(timeout=0.01)  # nothing is wrong so far
        gate.open()
        with pytest.raises(rr.MismatchError, match="Mismatched ALLREDUCE tensor shapes"):
            handle.wait(timeout=30)
        with pytest.raises(rr.MismatchError):
            rr.synchronize(handle)
        assert rr.poll(handle)
        mine = coming(np.ones(100, np.float32), stream) if rank == 0 else np.ones(100, np.float32)
        with pytest.raises(rr.MismatchError, match="Mismatched ALLREDUCE CPU/GPU device selection"):
            rr.allreduce_async(mine, name="places").wait(timeout=30)
        # A list in two places, and what one rank alone can tell: at once.
        device, host = gpu.array(np.ones(4, np.float32), stream), np.ones(4, np.float32)
        with pytest.raises(rr.HorovodInternalError, match="same device"):
            rr.grouped_allreduce([device, host])
        with pytest.raises(rr.InvalidArgumentError, match="is not supported"):
            rr.allreduce(gpu.array(np.ones(4, np.complex64), stream))
        with pytest.raises(rr.InvalidArgumentError, match="rank-zero tensor"):
            rr.allgather(gpu.array(np.float32(1), stream))
        with pytest.raises(rr.InvalidArgumentError, match="how unnamed operations on GPU memory are called"):
            rr.allreduce(device, name="device.allreduce.0")
        early, gate = coming(np.ones(4), stream), stream.gate()
        first = rr.allreduce_async_(early, name="twice")
        with pytest.raises(rr.InvalidArgumentError, match="same name"):
            rr.allreduce_async_(early, name="twice")
        gate.open()
        first.wait()
        for change, text in [
            ({"mask": device}, "mask"),
            ({"stream": 0}, "stream 0"),
            ({"strides": (8,)}, "C-contiguous"),
        ]:
            with pytest.raises(rr.InvalidArgumentError, match=text):
                rr.allreduce(Changed(device, change))
        with pytest.raises(rr.InvalidArgumentError, match="read-only"):
            rr.allreduce_(Changed(device, {"data": (device.address, True)}))
        assert np.array_equal(on(stream, rr.allreduce(Changed(device, {"strides": (4,)}), op=rr.Sum)), [world.size] * 4)
        with pytest.raises(rr.InvalidArgumentError, match="another rank"):
            rr.send(device, rank)
        # By DLPack alone.
        assert np.array_equal(
            on(stream, rr.allreduce_async(Packed(device), op=rr.Sum).wait(timeout=30)), [world.size] * 4
        )
        # Nobody asks for this one's error: it is logged, and the next call on GPU memory raises it, once.
        x, gate = coming(np.ones(20 + rank), stream), stream.gate()
        rr.allreduce_async(x, name="unasked")
        gate.open()
        refused: Exception | None = None
        while not isinstance(refused, rr.MismatchError):  # a call that goes no further than this rank
            with pytest.raises((rr.MismatchError, rr.InvalidArgumentError), match=r"'unasked'|rank-zero") as raised:
                rr.allgather(gpu.array(np.float32(1), stream))
            refused = raised.value
        assert np.array_equal(on(stream, rr.allreduce(device, op=rr.Sum)), [world.size] * 4)
        rr.barrier()


class Changed:
    """An array that says something else of itself."""

    def __init__(self, array: Array, change: dict[str, Any]) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **change}


class Packed:
    """An array that has DLPack only. Its capsule is one of NumPy's, over the same memory, which says CPU."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream == 1
        self.array.numpy()  # waits
        return memory(self.array).__dlpack__()


def test_mistakes_are_told_and_do_no_harm() -> None:
    with start_ranks(mistakes, 2, env=environment()) as job:
        outcomes = job.wait()
        assert all(outcome.status == 0 for outcome in outcomes), job.report()
        for outcome in outcomes:
            unasked = [line for line in outcome.output.splitlines() if "nobody asked" in line]
            assert len(unasked) == 1, job.report()
            assert "'unasked'" in unasked[0]


def memories() -> None:
    import ringreduce as rr

    rr.init()
    gpu = Gpu()
    stream, rank, size = gpu.stream(), rr.rank(), rr.size()
    # Orders that differ between the two kinds of memory, where no rank waits for the other: all goes well.
    for step in range(10):
        x = coming(whole(rank, step, 100), stream)
        if rank == 0:
            y = rr.allreduce_async(x, op=rr.Sum)
        assert rr.allreduce(np.ones(3), op=rr.Sum).tolist() == [size] * 3
        if rank != 0:
            y = rr.allreduce_async(x, op=rr.Sum)
        assert np.array_equal(on(stream, y.wait(timeout=30)), sum(whole(r, step, 100) for r in range(size)))
    # The same call, on rank 1 with a CPU tensor: every rank is told, with the same words, long before any timeout.
    ones = np.ones(30, np.float32)
    text = (
        r"device selection: rank 1 waits in allreduce with a CPU tensor for rank \d, and rank \d in 'device\.allreduce"
    )
    with pytest.raises(rr.MismatchError, match=text):
        rr.allreduce_async(ones if rank == 1 else coming(ones, stream), op=rr.Sum).wait(timeout=30)
    with pytest.raises(rr.MismatchError, match="same kind of memory, and in the same order, on all ranks"):
        rr.barrier()
    with pytest.raises(rr.MismatchError, match=text):
        rr.allreduce(coming(ones, stream), op=rr.Sum)


def test_other_memory_without_a_name_is_told_to_all() -> None:
    run_ranks(memories, 3, env=environment())


def blocks() -> None:
    import ringreduce as rr

    with rr.init() as world:
        gpu = Gpu()
        stream = gpu.stream()
        with pytest.raises(rr.MismatchError, match="shapes"):
            rr.allreduce(coming(np.ones(10 + world.rank), stream))
        x = coming(np.ones(1000, np.float32), stream)
        rr.allreduce_(x, op=rr.Sum)
        assert np.array_equal(memory(x), [world.size] * 1000)  # without asking the stream


def test_a_call_blocks_until_its_result_is_there() -> None:
    run_ranks(blocks, 2, env=environment())


def leaves_alone() -> None:
    import ringreduce as rr

    world = rr.init()
    gpu = Gpu()
    stream = gpu.stream()
    x = coming(np.ones(100), stream)
    handle = rr.allreduce_async_(x, name=f"of rank {world.rank}")
    if world.rank == 0:
        rr.shutdown()
        stream.synchronize()
        with pytest.raises(rr.Error):
            handle.wait()
    else:
        with pytest.raises(rr.ShutdownError):
            handle.wait(timeout=30)
        stream.synchronize()
        rr.shutdown()


def test_a_rank_that_leaves_lets_others_go() -> None:
    run_ranks(leaves_alone, 2, env=environment())


def waits() -> Any:
    import ringreduce as rr

    world = rr.init()
    gpu = Gpu()
    stream, other = gpu.stream(), gpu.stream()
    x = coming(whole(world.rank, 1, 200_000), stream)
    rr.allreduce_(x, op=rr.Sum)
    stream.synchronize()
    pending = [coming(np.ones(50_000 + i, np.float32), [stream, other][i % 2]) for i in range(6)]
    if world.rank == 1:
        send_to_test("ready")
        receive_from_test()
        return None
    handles = [rr.allreduce_async_(y, name=str(i), op=rr.Sum) for i, y in enumerate(pending)]
    send_to_test("ready")
    errors = []
    for handle in handles:
        with pytest.raises(rr.PeerLostError, match="rank 1") as caught:
            handle.wait(timeout=30)
        errors.append(str(caught.value))
    moment = time.monotonic()
    stream.synchronize()
    other.synchronize()
    with pytest.raises(rr.PeerLostError):
        rr.allreduce_(x)
    return moment, errors


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_a_rank_is_killed_while_others_wait_for_it(path: str) -> None:
    with start_ranks(waits, 3, env=environment(RINGREDUCE_GPU_PATH=path)) as job:
        killed, others = survivors(job, 1, "ready")
    for moment, errors in others:
        assert moment - killed < SOON_S
        assert len(errors) == 6
        assert all("lost rank 1" in text for text in errors), errors


def times_out() -> None:
    import ringreduce as rr

    world = rr.init()
    gpu = Gpu()
    stream = gpu.stream()
    if world.rank == 0:
        x = coming(np.ones(1000), stream)
        with pytest.raises(rr.TimeoutError):
            rr.allreduce_(x)
        stream.synchronize()
        with pytest.raises(rr.TimeoutError, match=r"device\.allreduce\.0.*missing rank\(s\): 1"):
            rr.allreduce_(x)
        send_to_test("failed")
    receive_from_test()


def test_a_rank_that_does_not_come_is_named() -> None:
    with start_ranks(times_out, 2, env=environment(RINGREDUCE_TIMEOUT="3")) as job:
        assert job.receive(0) == "failed"
        job.send(0)
        job.send(1)
        assert all(outcome.status == 0 for outcome in job.wait()), job.report()
