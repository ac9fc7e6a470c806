"""How one collective is called over and over: by a loop inside the core, or by a Python loop over the public functions.

The first shows what the engine can do, the second what a caller gets. Both give seconds on this rank only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

import ringreduce
from ringreduce.bench.collectives import Collective
from ringreduce.collectives.buffers import CODES, native
from ringreduce.errors import UnavailableError

if TYPE_CHECKING:
    from ringreduce._core import Buffer, Group

Array = NDArray[Any]


class Loop(Protocol):
    """One collective on fixed operands."""

    def once(self) -> Array:
        """One call. Returns this rank's output."""

    def seconds(self, iters: int, rewrite: bool) -> list[float]:
        """Times of calls.

        rewrite: each call comes after rewriting the input and a barrier and is timed alone. Otherwise calls run back
        to back: the core gives one value, their mean; Python gives each call's.
        """


class CoreLoop:
    """Level c: the loop is `Group.bench`."""

    def __init__(self, group: Group, collective: Collective, src: Array, dst: Array, dtype: str, op: int) -> None:
        self.group = group
        self.kind = collective.name
        self.dst = dst
        self.operands = (_native(src, dtype), _native(dst, dtype))
        self.op = op

    def once(self) -> Array:
        """One call by the same loop that is timed."""
        self.group.bench(self.kind, *self.operands, self.op, 1, False)
        return self.dst

    def seconds(self, iters: int, rewrite: bool) -> list[float]:
        """See Loop."""
        return self.group.bench(self.kind, *self.operands, self.op, iters, rewrite)


class PythonLoop:
    """Level python: the functions that scripts call, with their argument checks and their new result arrays."""

    def __init__(self, collective: Collective, src: Array, dst: Array, dtype: str, op: int) -> None:
        self.src = src
        self.call = _public(collective.name, _typed(src, dtype), dst is src, op)

    def once(self) -> Array:
        """One call. bfloat16 comes back as the integers that hold it."""
        result = self.call()
        return self.src if result is None else np.asarray(result).view(self.src.dtype)

    def seconds(self, iters: int, rewrite: bool) -> list[float]:
        """See Loop."""
        return timed(self.call, self.src if rewrite else None, ringreduce.barrier, iters)


def timed(call: Callable[[], Any], rewritten: Array | None, barrier: Callable[[], Any], iters: int) -> list[float]:
    """Seconds of each of iters calls, every one after writing `rewritten` and passing the barrier, if it is given.

    The garbage collector is off meanwhile. Peers that are called from Python are timed by this too.
    """
    clock = perf_counter_ns
    times = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(iters):
            if rewritten is not None:
                rewritten.fill(1)
                barrier()
            start = clock()
            call()
            times.append(clock() - start)
    finally:
        if collecting:
            gc.enable()
    return [nanoseconds * 1e-9 for nanoseconds in times]


def _public(name: str, x: Array, in_place: bool, op: int) -> Callable[[], Any]:
    """The public function for a collective, ready to be called. None as its result means that x holds it."""
    if name == "allreduce":
        function = ringreduce.allreduce_ if in_place else ringreduce.allreduce
        return lambda: function(x, op=op)
    if name == "broadcast":
        return lambda: ringreduce.broadcast_(x, root_rank=0)
    return {
        "reducescatter": lambda: ringreduce.reducescatter(x, op=op),
        "allgather": lambda: ringreduce.allgather(x),
        "alltoall": lambda: ringreduce.alltoall(x),
        "barrier": lambda: ringreduce.barrier(),
    }[name]


def _native(array: Array, dtype: str) -> Buffer:
    if dtype != "bfloat16":
        return native(array)
    return (array.ctypes.data, array.shape, CODES[dtype], array)


def _typed(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise UnavailableError(
            "ringreduce bench --dtype bfloat16 --level python needs NumPy's bfloat16: pip install ml_dtypes; "
            "--level c does without"
        ) from None
    typed: Array = array.view(bfloat16)
    return typed
