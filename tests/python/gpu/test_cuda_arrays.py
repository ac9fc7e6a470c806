"""ringreduce's own functions on GPU arrays that are not torch's: CuPy's, and whatever has __cuda_array_interface__."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest
from ranks import run_ranks

pytestmark = pytest.mark.usefixtures("gpu")


class Raw:
    """An array that only says where it is: no stream, or one that its content comes from."""

    def __init__(self, array: Any, stream: int | None) -> None:
        self.array = array  # of CuPy
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.data.ptr, False),
            "version": 3,
            "strides": None,
            "stream": stream,
        }


def of_cupy() -> list[str]:
    import cupy

    import ringreduce

    world = ringreduce.init()
    cupy.cuda.Device(world.local_rank % cupy.cuda.runtime.getDeviceCount()).use()
    size, rank = world.size, world.rank
    digests = []
    for name in oracle.DTYPES:
        if name == "bfloat16":
            continue  # CuPy has none of its own
        for op in (oracle.SUM, oracle.AVERAGE, oracle.MAX, oracle.LOGICAL_AND, oracle.BITWISE_OR):
            if not oracle.meaningful(name, op):
                continue
            inputs = [oracle.values(op, r, 4097, name, op) for r in range(size)]
            given = cupy.asarray(inputs[rank])
            result = ringreduce.allreduce(given, op=op)
            assert isinstance(result, cupy.ndarray)
            assert not (bad := oracle.wrong(cupy.asnumpy(result), inputs, op)), f"{name} {op}: {bad}"
            assert np.array_equal(cupy.asnumpy(given), inputs[rank])
            ringreduce.allreduce_(given, op=op, name=f"{name}.{op}")
            digests += [oracle.digest(cupy.asnumpy(array)) for array in (result, given)]
            assert digests[-1] == digests[-2]
    # a stream of CuPy's own, on which the input is made late and the output is used
    inputs = [oracle.values(1, r, 1_000_003, "float32") for r in range(size)]
    given = cupy.asarray(inputs[rank])
    late = cupy.zeros_like(given)
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True):
        for _ in range(200):
            late *= 1.5  # keeps the stream busy
        late[...] = given
        result = ringreduce.allreduce(late, op=oracle.SUM)
        doubled = result * 2
        host = cupy.asnumpy(doubled)
    assert not oracle.wrong(host / 2, inputs, oracle.SUM)
    # the other collectives
    rows = [oracle.values(2, r, 3 * (2 + r), "int32").reshape(2 + r, 3) for r in range(size)]
    assert np.array_equal(cupy.asnumpy(ringreduce.allgather(cupy.asarray(rows[rank]))), np.concatenate(rows))
    assert np.array_equal(cupy.asnumpy(ringreduce.broadcast(cupy.asarray(rows[0] + rank), 0)), rows[0])
    blocks = [oracle.values(3, r, 4 * size, "float32").reshape(size, 4) for r in range(size)]
    expected = np.stack([blocks[r][rank] for r in range(size)])
    received, counts = ringreduce.alltoall(cupy.asarray(blocks[rank]), [1] * size)
    assert np.array_equal(cupy.asnumpy(received), expected)
    assert list(counts) == [1] * size
    mine = cupy.asnumpy(ringreduce.reducescatter(cupy.asarray(blocks[rank]), op=oracle.SUM))
    assert not oracle.wrong(mine, [array[oracle.rows(size, rank, size)] for array in blocks], oracle.SUM)
    # what only says where it is
    for stream in (None, 1):
        given = cupy.asarray(inputs[rank])
        cupy.cuda.Device().synchronize()
        ringreduce.allreduce_(Raw(given, stream), op=oracle.SUM)
        cupy.cuda.Device().synchronize()
        assert not oracle.wrong(cupy.asnumpy(given), inputs, oracle.SUM)
    with pytest.raises(ringreduce.InvalidArgumentError, match="contiguous"):
        ringreduce.allreduce_(cupy.zeros((4, 6))[:, ::2])
    return digests


@pytest.mark.parametrize(("size", "path"), [(1, "auto"), (2, "ipc"), (2, "staged"), (4, "auto")])
def test_cupy_and_bare_arrays(size: int, path: str) -> None:
    pytest.importorskip("cupy")
    found = run_ranks(of_cupy, size, env={"RINGREDUCE_GPU_PATH": path})
    assert all(digests == found[0] for digests in found)
