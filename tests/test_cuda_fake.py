"""GPU arrays from Python to Python on the fake CUDA driver: ranks are processes, streams slow, results exact."""

from __future__ import annotations

import ctypes
import re
import signal
import time
from typing import Any

import fake_cuda
import numpy as np
import oracle
import pytest
from fake_cuda import Array, Gpu, Stream
from ranks import hear_test, run_ranks, start_ranks, tell_test

NOTICED_S = 5.0  # a death is noticed within 0.1 s where cores are free
LATE_US = 10_000


def environment(**more: str) -> dict[str, str | None]:
    """For ranks on the fake driver. Skips by name where it has not been built."""
    if not fake_cuda.LIBRARY.exists():
        pytest.skip(f"no fake CUDA driver: {fake_cuda.LIBRARY.name} is built with RR_TESTS=ON")
    return {"RINGREDUCE_CUDA_LIBRARY": str(fake_cuda.LIBRARY), "RINGREDUCE_TIMEOUT": "60", **more}


def coming(content: Any, stream: Stream) -> Array:
    """An array whose content comes late, by work on the stream."""
    stream.delay(LATE_US)
    return stream.gpu.array(content, stream)


def on(stream: Stream, value: Any) -> Any:
    """What work on a stream finds in anybody's array."""
    offered = value.__cuda_array_interface__
    found = stream.gpu.empty(offered["shape"], value.dtype, stream)
    if found.nbytes:
        stream.gpu.call("cuMemcpyAsync", found.address, offered["data"][0], found.nbytes, stream.handle)
    return found.numpy()


def memory(array: Array) -> Any:
    """What is there now, whatever streams are doing."""
    raw = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(raw, array.dtype).reshape(array.shape)


def whole(rank: int, seed: int, shape: Any, dtype: Any = np.float32) -> Any:
    """Small whole numbers that depend on rank and position, so that sums are exact in any order."""
    count = int(np.prod(shape))
    return ((np.arange(count) * (seed % 5 + 1) + 7 * rank + seed) % 11).astype(dtype).reshape(shape)


def total(size: int, seed: int, shape: Any, dtype: Any = np.float32) -> Any:
    return sum(whole(rank, seed, shape, np.int64) for rank in range(size)).astype(dtype)


def reductions() -> list[str]:
    import ringreduce as rr

    digests = []
    with rr.init() as world:
        gpu = Gpu()
        producer, consumer, rank, size = gpu.stream(), gpu.stream(), world.rank, world.size
        for seed, (count, dtype) in enumerate([(1, "f4"), (5000, "f4"), (100_003, "f8"), (70_000, "i4"), (0, "f4")]):
            x = coming(whole(rank, seed, count, dtype), producer)
            y = rr.allreduce(x, op=rr.Sum)
            assert isinstance(y, rr.DeviceArray), type(y)
            assert (y.shape, y.dtype, y.stream) == ((count,), np.dtype(dtype), producer.handle)
            assert np.array_equal(on(producer, y), total(size, seed, count, dtype)), (count, dtype)
            assert np.array_equal(on(producer, x), whole(rank, seed, count, dtype))  # left alone
            assert rr.allreduce_(x, op=rr.Sum) is x
            assert np.array_equal(on(producer, x), total(size, seed, count, dtype))
        # Asynchronous, in another order on each rank, for another stream.
        inputs = {f"tensor {i}": coming(whole(rank, i, 1000 + i), producer) for i in range(12)}
        names = list(inputs)
        np.random.default_rng(rank).shuffle(names)
        handles = {name: rr.allreduce_async_(inputs[name], name=name, op=rr.Sum) for name in names}
        for i, name in enumerate(inputs):
            inputs[name].stream = consumer  # what its library would call the current stream
            assert rr.synchronize(handles[name]) is inputs[name]
            assert np.array_equal(on(consumer, inputs[name]), total(size, i, 1000 + i)), name
            handles[name].wait(timeout=30)
            assert rr.poll(handles[name])
        # As one, of several dtypes; with factors; an average.
        group = [coming(whole(rank, i, (3, i + 1), ["f4", "f8", "i8"][i % 3]), producer) for i in range(7)]
        for i, y in enumerate(rr.grouped_allreduce(group, op=rr.Sum)):
            assert np.array_equal(on(producer, y), total(size, i, (3, i + 1), group[i].dtype)), i
        rr.grouped_allreduce_(group, op=rr.Max)
        for i, y in enumerate(group):
            best = np.max([whole(r, i, (3, i + 1), y.dtype) for r in range(size)], axis=0)
            assert np.array_equal(on(producer, y), best), i
        x = coming(whole(rank, 3, 4000), producer)
        y = rr.allreduce(x, op=rr.Sum, prescale_factor=0.5, postscale_factor=4)
        assert np.array_equal(on(producer, y), 2 * total(size, 3, 4000))
        half = coming(whole(rank, 4, 4001, oracle.dtype("bfloat16")), producer)
        y = rr.allreduce(half, op=rr.Average)
        mean = (total(size, 4, 4001) / np.float32(size)).astype(half.dtype)
        assert on(producer, y).tobytes() == mean.tobytes()
        for seed in range(3):  # bits agree on all ranks, and the error is bounded
            values = [oracle.values(seed, r, 30_001, "float32") for r in range(size)]
            y = on(producer, rr.allreduce(coming(values[rank], producer), op=rr.Sum))
            assert not oracle.wrong(y, values, oracle.SUM)
            digests.append(oracle.digest(y))
        # Rows of the sum, and the sum for one.
        rows = coming(whole(rank, 5, (7, 300)), producer)
        mine = on(producer, rr.reducescatter(rows, op=rr.Sum))
        parts = np.array_split(total(size, 5, (7, 300)), size)
        assert np.array_equal(mine, parts[rank])
        one = rr.reduce(rows, size - 1, op=rr.Sum)
        assert (one is None) == (rank != size - 1)
        if one is not None:
            assert np.array_equal(on(producer, one), total(size, 5, (7, 300)))
        rr.barrier()
        assert rr.stats()["cells"] <= 20  # nothing of a GPU goes by the cells
    return digests


def movements() -> None:
    import ringreduce as rr

    with rr.init() as world:
        gpu = Gpu()
        stream, rank, size = gpu.stream(), world.rank, world.size
        for shape in [(4, 3), (2000, 17)]:
            for root in range(size):
                x = coming(whole(rank, root, shape), stream)
                y = rr.broadcast(x, root)
                assert np.array_equal(on(stream, y), whole(root, root, shape))
                assert np.array_equal(on(stream, x), whole(rank, root, shape))
                rr.broadcast_(x, root, name=f"broadcast {shape} {root}")
                assert np.array_equal(on(stream, x), whole(root, root, shape))
            x = coming(whole(rank, 1, shape, np.int16), stream)
            y = rr.allgather(x)
            assert np.array_equal(on(stream, y), np.concatenate([whole(r, 1, shape, "i2") for r in range(size)]))
        ragged = coming(whole(rank, 2, (5 * rank, 9)), stream)
        handle = rr.allgather_async(ragged, name="ragged")
        everything = np.concatenate([whole(r, 2, (5 * r, 9)) for r in range(size)])
        assert np.array_equal(on(stream, handle.wait()), everything)
        gathered = rr.gather(ragged, 0)
        assert (gathered is None) == (rank != 0)
        if gathered is not None:
            assert np.array_equal(on(stream, gathered), everything)
        part = gpu.empty((6,), "f4", stream)
        rr.scatter(coming(whole(0, 3, (size, 6)), stream) if rank == 0 else None, part, 0)
        assert np.array_equal(on(stream, part), whole(0, 3, (size, 6))[rank])
        rows = coming(whole(rank, 4, (2 * size, 50)), stream)
        even = rr.alltoall(rows)
        expected = [whole(r, 4, (2 * size, 50))[2 * rank : 2 * rank + 2] for r in range(size)]
        assert np.array_equal(on(stream, even), np.concatenate(expected))
        splits = [(rank + to) % 3 for to in range(size)]
        uneven = coming(whole(rank, 5, (sum(splits), 4)), stream)
        received, counts = rr.alltoall(uneven, splits)
        expected = []
        for r in range(size):
            theirs = [(r + to) % 3 for to in range(size)]
            begin = sum(theirs[:rank])
            expected.append(whole(r, 5, (sum(theirs), 4))[begin : begin + theirs[rank]])
        assert counts.tolist() == [(r + rank) % 3 for r in range(size)]
        assert np.array_equal(on(stream, received), np.concatenate(expected))
        # Messages round the ring, several under way, and one to host memory.
        right, left = (rank + 1) % size, (rank - 1) % size
        if size > 1:
            outgoing = [coming(whole(rank, i, 1 + 40_000 * i), stream) for i in range(4)]
            incoming = [gpu.empty(1 + 40_000 * i, "f4", stream) for i in range(4)]
            handles = [rr.send_async(x, right, tag=i // 2) for i, x in enumerate(outgoing)]
            handles += [rr.recv_async(y, left, tag=i // 2) for i, y in enumerate(incoming)]
            for handle in handles:
                handle.wait()
            for i, y in enumerate(incoming):
                assert np.array_equal(on(stream, y), whole(left, i, 1 + 40_000 * i)), i
            host = np.zeros(10, np.float32)
            sent = rr.send_async(coming(whole(rank, 9, 10), stream), right, tag=5)
            assert np.array_equal(rr.recv(host, left, tag=5), whole(left, 9, 10))
            sent.wait(timeout=30)


@pytest.mark.parametrize("road", ["ipc", "staged"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions(size: int, road: str) -> None:
    digests = run_ranks(reductions, size, env=environment(RINGREDUCE_CUDA_ROAD=road), timeout_s=120)
    assert all(digest == digests[0] for digest in digests)


@pytest.mark.parametrize("road", ["ipc", "staged"])
@pytest.mark.parametrize("size", [1, 3])
def test_movements(size: int, road: str) -> None:
    run_ranks(movements, size, env=environment(RINGREDUCE_CUDA_ROAD=road), timeout_s=120)


def mistakes() -> None:
    import ringreduce as rr

    with rr.init() as world:
        gpu = Gpu()
        stream, rank = gpu.stream(), world.rank
        # Ranks that do not fit together: told where the handle is asked; the stream goes on; the job too.
        handle = rr.allreduce_async(coming(np.ones(10 + rank), stream), name="shapes")
        handle.wait()
        stream.synchronize()
        with pytest.raises(rr.MismatchError, match="Mismatched ALLREDUCE tensor shapes"):
            handle.wait(timeout=30)
        with pytest.raises(rr.MismatchError):
            rr.synchronize(handle)
        assert rr.poll(handle)
        x = coming(np.ones(100, np.float32), stream) if rank == 0 else np.ones(100, np.float32)
        with pytest.raises(rr.MismatchError, match="Mismatched ALLREDUCE CPU/GPU device selection"):
            rr.allreduce_async(x, name="places").wait(timeout=30)
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
        early = coming(np.ones(4), stream)
        first = rr.allreduce_async_(early, name="twice")
        with pytest.raises(rr.InvalidArgumentError, match="same name"):
            rr.allreduce_async_(early, name="twice")
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
        assert np.array_equal(on(stream, rr.allreduce(Packed(device), op=rr.Sum)), [world.size] * 4)
        # Nobody asks for this one's error, so it is logged.
        rr.allreduce(coming(np.ones(20 + rank), stream), name="unasked")
        stream.synchronize()
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
        outcomes = job.wait(60)
        assert all(outcome.status == 0 for outcome in outcomes), job.report()
        for outcome in outcomes:
            unasked = [line for line in outcome.output.splitlines() if "nobody asked" in line]
            assert len(unasked) == 1, job.report()
            assert "'unasked'" in unasked[0]


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


def test_calls_can_block_for_debugging() -> None:
    run_ranks(blocks, 2, env=environment(RINGREDUCE_CUDA_BLOCKING="1"))


def graphs() -> None:
    import ringreduce as rr

    with rr.init() as world:
        gpu = Gpu()
        stream, other, rank, size = gpu.stream(), gpu.stream(), world.rank, world.size
        source, x = gpu.empty(5000, "f4", stream), gpu.empty(5000, "f4", stream)
        result = gpu.empty(5000, "f4", stream)
        with stream.capture() as graph:
            gpu.call("cuMemcpyAsync", x.address, source.address, x.nbytes, stream.handle)
            handle = rr.allreduce_async_(x, op=rr.Sum)
            assert rr.synchronize(handle) is x
            rr.allreduce_(x, name="again", op=rr.Sum)
            with pytest.raises(rr.InvalidArgumentError, match="not known while a CUDA graph is captured"):
                rr.allgather(x)
            gpu.call("cuMemcpyAsync", result.address, x.address, x.nbytes, stream.handle)
        for step in range(5):
            stream.delay(LATE_US)
            source.set(whole(rank, step, 5000))
            graph.replay()
            y = rr.allreduce(coming(whole(rank, step, 100), other), op=rr.Sum)  # beside the graph's
            assert np.array_equal(result.numpy(), size * total(size, step, 5000)), step
            assert np.array_equal(on(other, y), total(size, step, 100))
        rr.barrier()
        rr.shutdown()
        graph.replay()  # lets go at once
        stream.synchronize()


def test_captured_calls_run_at_each_replay() -> None:
    run_ranks(graphs, 2, env=environment())


def again() -> list[int]:
    import ringreduce as rr

    gpu = Gpu()
    stream = gpu.stream()
    sums = []
    for job in range(3):
        with rr.init() as world:
            x = coming(whole(world.rank, job, 3000), stream)
            rr.allreduce_(x, op=rr.Sum)
            assert rr.stats()["operations"] <= 1
        # shutdown() has let what a stream waits for finish
        assert np.array_equal(on(stream, x), total(world.size, job, 3000))
        with pytest.raises(rr.NotInitializedError):
            rr.allreduce_(x)
        sums.append(int(memory(x).sum()))
    return sums


def test_shutdown_finishes_and_init_begins_again() -> None:
    first, second = run_ranks(again, 2, env=environment())
    assert first == second


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
        handle.wait()
        stream.synchronize()
        with pytest.raises(rr.ShutdownError):
            handle.wait(timeout=30)
        rr.shutdown()


def test_a_rank_that_leaves_lets_streams_go() -> None:
    run_ranks(leaves_alone, 2, env=environment())


def holds() -> Any:
    import ringreduce as rr

    world = rr.init()
    gpu = Gpu()
    stream, other = gpu.stream(), gpu.stream()
    x = coming(whole(world.rank, 1, 200_000), stream)
    rr.allreduce_(x, op=rr.Sum)
    stream.synchronize()
    pending = [coming(np.ones(50_000 + i, np.float32), [stream, other][i % 2]) for i in range(6)]
    if world.rank == 1:
        tell_test("ready")
        hear_test()
        return None
    handles = [rr.allreduce_async_(y, name=str(i), op=rr.Sum) for i, y in enumerate(pending)]
    for handle in handles:
        handle.wait()
    tell_test("ready")
    stream.synchronize()
    other.synchronize()
    moment = time.monotonic()
    errors = []
    for handle in handles:
        with pytest.raises(rr.PeerLostError, match="rank 1") as caught:
            handle.wait(timeout=30)
        errors.append(str(caught.value))
    with pytest.raises(rr.PeerLostError):
        rr.allreduce_(x)
    return moment, errors


@pytest.mark.parametrize("road", ["ipc", "staged"])
def test_a_rank_is_killed_while_streams_wait_for_it(road: str) -> None:
    with start_ranks(holds, 3, env=environment(RINGREDUCE_CUDA_ROAD=road)) as job:
        for rank in range(3):
            assert job.hear(rank) == "ready"
        killed = job.kill(1)
        outcomes = job.wait(30)
        assert outcomes[1].status == -signal.SIGKILL
        for rank in (0, 2):
            assert outcomes[rank].value is not None, job.report()
            moment, errors = outcomes[rank].value
            assert moment - killed < NOTICED_S
            assert all(re.search("lost rank 1", text) for text in errors), errors


def times_out() -> None:
    import ringreduce as rr

    world = rr.init()
    gpu = Gpu()
    stream = gpu.stream()
    if world.rank == 0:
        x = coming(np.ones(1000), stream)
        rr.allreduce_(x)
        stream.synchronize()  # comes to an end
        with pytest.raises(rr.TimeoutError, match=r"device\.allreduce\.0.*missing rank\(s\): 1"):
            rr.allreduce_(x)
        tell_test("failed")
    hear_test()


def test_a_rank_that_does_not_come_is_named() -> None:
    with start_ranks(times_out, 2, env=environment(RINGREDUCE_TIMEOUT="1")) as job:
        assert job.hear(0) == "failed"
        job.tell(0)
        job.tell(1)
        assert all(outcome.status == 0 for outcome in job.wait(30)), job.report()
