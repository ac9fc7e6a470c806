"""Memory for the operands: private to this rank, or registered (mapped by every local rank)."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ringreduce

HUGE_PAGE = 2 << 20

Array = NDArray[Any]


def operand(count: int, storage: type[np.generic], registered: bool) -> Array:
    """A zeroed 1-D array of count elements. Collective when registered."""
    if registered and count:
        array: Array = ringreduce.symmetric_empty(count, storage)
    else:
        array = private(count, storage)
    array.fill(0)  # touched here, so that no timed call takes the page faults
    return array


def private(count: int, storage: type[np.generic]) -> Array:
    """An array over anonymous private memory that starts on a huge page, with huge pages advised.

    peers/collectives.c does the same: what is compared is the collective, not the allocator.
    """
    dtype = np.dtype(storage)
    memory = mmap.mmap(-1, count * dtype.itemsize + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(memory, np.uint8)
    start = -everything.ctypes.data % HUGE_PAGE
    return everything[start : start + count * dtype.itemsize].view(dtype)
