"""GPU arrays from Python to Python on the fake CUDA driver: ranks are processes, streams slow, results exact."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from fake_cuda import Array, Gpu
from fake_gpu_ranks import coming, environment, memory, on, total, whole
from ranks import run_ranks


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
        assert rr.stats()["one_shot"] <= 20  # nothing of a GPU goes through a request slot
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


@pytest.mark.parametrize("path", ["ipc", "staged"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions(size: int, path: str) -> None:
    digests = run_ranks(reductions, size, env=environment(RINGREDUCE_GPU_PATH=path))
    assert all(digest == digests[0] for digest in digests)


@pytest.mark.parametrize("path", ["ipc", "staged"])
@pytest.mark.parametrize("size", [1, 3])
def test_movements(size: int, path: str) -> None:
    run_ranks(movements, size, env=environment(RINGREDUCE_GPU_PATH=path))


class Rows:
    """A row of somebody's array, from this element on; it has the array's memory."""

    def __init__(self, array: Array, first: int) -> None:
        self.dtype = array.dtype
        self.array = array
        offered = array.__cuda_array_interface__
        address = offered["data"][0] + first * array.dtype.itemsize
        self.__cuda_array_interface__ = {**offered, "shape": array.shape[1:], "data": (address, False)}


def scattered_into_itself() -> None:
    import ringreduce as rr

    with rr.init() as world:
        stream, rank, size, count = Gpu().stream(), world.rank, world.size, 40_000
        for root in range(size):
            for first in (root * count, (root + 1) % size * count, count // 2):
                content = whole(root, root, (size, count))
                array = coming(content, stream)
                output = Rows(array, first)
                rr.scatter(array if rank == root else None, output, root)
                assert np.array_equal(on(stream, output), content[rank]), (root, first)


@pytest.mark.parametrize("path", ["ipc", "staged"])
def test_scatter_into_the_roots_own_array(path: str) -> None:
    run_ranks(scattered_into_itself, 3, env=environment(RINGREDUCE_GPU_PATH=path))


def captured() -> None:
    import ringreduce as rr

    with rr.init():
        gpu = Gpu()
        stream = gpu.stream()
        x = gpu.empty(500, "f4", stream)
        calls = (rr.allreduce_, rr.allgather, rr.alltoall, lambda tensor: rr.broadcast_(tensor, 0))
        with stream.capture():
            for call in calls:
                with pytest.raises(rr.UnavailableError, match="outside of the capture"):
                    call(x)
        for call in calls:
            call(x)
        rr.barrier()


def test_calls_in_a_graph_are_refused() -> None:
    run_ranks(captured, 2, env=environment())


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
