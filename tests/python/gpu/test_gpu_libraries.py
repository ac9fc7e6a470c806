"""Arrays of CuPy and torch, as ringreduce asks these for new ones: pretended libraries on the fake CUDA driver."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import Gpu, Stream
from fake_gpu_ranks import coming, environment, on, total, whole
from ranks import run_ranks


class Pretended:
    """An array of either library over anybody's memory. Its current stream is the class's."""

    stream: Stream
    device = SimpleNamespace(id=0, index=0)

    def __init__(self, base: Any, shape: Any = None, dtype: Any = None, strides: Any = None) -> None:
        offered = base.__cuda_array_interface__
        self.base = base  # holds the memory
        self.shape = tuple(offered["shape"] if shape is None else shape)
        self.dtype = np.dtype(offered["typestr"] if dtype is None else dtype)
        self.__cuda_array_interface__ = {
            **offered,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": strides,
            "stream": None,
        }

    def copy(self) -> Pretended:
        """Also clone(), contiguous() and cupy.ascontiguousarray(): of what a transposed one stands for."""
        content = on(self.stream, Pretended(self.base, dtype=self.dtype))
        if self.__cuda_array_interface__["strides"] is not None:
            content = content.T
        return type(self)(self.stream.gpu.array(np.ascontiguousarray(content), self.stream))

    clone = contiguous = copy

    def view(self, to: Any) -> Pretended:
        if isinstance(to, tuple):
            return type(self)(self.base, to, self.dtype)
        return type(self)(self.base, None, to)

    @property
    def T(self) -> Pretended:
        rows, columns = self.shape
        return type(self)(self.base, (columns, rows), strides=(self.dtype.itemsize, columns * self.dtype.itemsize))


def library(name: str, stream: Stream) -> tuple[type[Pretended], list[str]]:
    """A module of that name, its class of arrays, and what it has been asked for."""
    kind = type("ndarray", (Pretended,), {"__module__": name, "stream": stream})
    asked: list[str] = []

    def empty(shape: Any, dtype: Any, device: Any = None) -> Pretended:
        asked.append("empty")
        return kind(stream.gpu.empty(shape, dtype, stream))

    def adopted(memory: Any, device: Any = None) -> Pretended:
        asked.append("adopted")
        return kind(memory)

    def current_stream(ordinal: int) -> Any:
        assert ordinal == 0
        return SimpleNamespace(cuda_stream=stream.handle)

    module: Any = ModuleType(name)
    module.empty = empty
    if name == "cupy":
        module.asarray = adopted
        module.ascontiguousarray = kind.copy
        module.cuda = SimpleNamespace(Device=nullcontext, get_current_stream=lambda: SimpleNamespace(ptr=stream.handle))
    else:
        module.as_tensor = adopted
        module.cuda = SimpleNamespace(current_stream=current_stream)
    sys.modules[name] = module
    return kind, asked


def results(name: str) -> None:
    import ringreduce as rr

    with rr.init() as world:
        rank, size = world.rank, world.size
        stream = Gpu().stream()
        kind, asked = library(name, stream)

        def mine(seed: int, *shape: int) -> Pretended:
            return kind(coming(whole(rank, seed, shape), stream))

        y = rr.allreduce(mine(1, 5000), op=rr.Sum)
        assert type(y) is kind
        assert asked == ["empty"]
        assert np.array_equal(on(stream, y), total(size, 1, 5000))
        y = rr.allreduce(mine(2, 30, 7).T, op=rr.Sum)  # the library's own copy in C order
        assert type(y) is kind
        assert np.array_equal(on(stream, y), total(size, 2, (30, 7)).T)
        with pytest.raises(rr.InvalidArgumentError, match="C-contiguous"):
            rr.allreduce_(mine(2, 30, 7).T)
        x = mine(3, 100)
        y = rr.broadcast(x, 1)
        assert type(y) is kind
        assert np.array_equal(on(stream, y), whole(1, 3, 100))
        assert np.array_equal(on(stream, x), whole(rank, 3, 100))
        asked.clear()
        y = rr.allgather(mine(4, 2 + rank, 3))
        assert type(y) is kind
        assert asked == ["empty", "adopted"]  # room for equal parts, and what has come instead
        assert (y.shape, y.dtype) == ((sum(2 + r for r in range(size)), 3), np.dtype("f4"))
        assert np.array_equal(on(stream, y), np.concatenate([whole(r, 4, (2 + r, 3)) for r in range(size)]))
        # One of no elements, which lies nowhere.
        y = rr.allgather(mine(5, 4 * rank, 2))
        assert np.array_equal(on(stream, y), np.concatenate([whole(r, 5, (4 * r, 2)) for r in range(size)]))


@pytest.mark.parametrize("name", ["cupy", "torch"])
def test_results_are_arrays_of_the_inputs_library(name: str) -> None:
    run_ranks(results, 2, args=(name,), env=environment())
