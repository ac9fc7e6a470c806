"""Memory for the operands: private to this rank, or registered (mapped by every local rank)."""

from __future__ import annotations

import math
import mmap
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import ringreduce
from ringreduce.bench import machine
from ringreduce.bench.collectives import COLLECTIVES, Collective
from ringreduce.bench.oracle import DTYPES
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.collective_json import allgather_json
from ringreduce.launch.quota import memory_left

if TYPE_CHECKING:
    from ringreduce.bench.options import Options

GIB = 1 << 30
HUGE_PAGE = 2 << 20

Array = NDArray[Any]


def check_room(options: Options) -> None:
    """Whether the largest size has room on each host. Collective: raises InvalidArgumentError on all ranks."""
    problem = without_room(options, ringreduce.size(), ringreduce.local_size())
    for one in allgather_json(ringreduce.global_process_set.group, "bench.room", problem):
        if one:
            raise InvalidArgumentError(one)


def without_room(options: Options, ranks: int, here: int) -> str:
    """Why this host, which has `here` of the ranks, has no room for the largest size; "" where it has."""
    collective = COLLECTIVES[options.collective]
    itemsize = np.dtype(DTYPES[options.dtype][0]).itemsize
    count = max(collective.count(size, itemsize, ranks) for size in options.sizes)
    need = here * _most_elements(options, count, ranks, is_one_host=ranks == here) * itemsize
    if need <= (free := available()):
        return ""
    return (
        f"ringreduce bench: a size of {count * itemsize} bytes takes {need / GIB:.1f} GiB of this host's memory, "
        f"of which {free / GIB:.1f} GiB are free"
    )


def _most_elements(options: Options, count: int, ranks: int, is_one_host: bool) -> int:
    """Elements that a rank has at the same time, at most, in measure() for a size of so many."""
    collective = COLLECTIVES[options.collective]
    counts = collective.operand_counts(count, ranks, collective.is_in_place(options.in_place))
    held = sum(counts)
    if options.level == "c":
        timing = counts[0]  # the loop's copy of the input, from which it rewrites it
    elif len(counts) == 1:
        timing = 0
    else:
        timing = counts[1]  # each call's new result
        held += counts[1] if options.check else 0  # the checked one stays
    limit = 0
    if options.limit and ranks > 1 and is_one_host and options.dtype != "bfloat16":
        own = collective.operand_counts(count, ranks, is_limit_in_place(collective, options.in_place))
        limit = sum(own) + own[0]  # limit.memory_s(): operands, and the loop's copy
    return held + max(timing, limit)


def is_limit_in_place(collective: Collective, asked: bool) -> bool:
    """Whether the limit has one operand: a broadcast's loads and stores go from one to another."""
    return asked and collective.name == "allreduce"


def available() -> float:
    """Bytes of memory that this host has left, or this container has."""
    found = re.search(r"^MemAvailable: +(\d+) kB", machine.read("/proc/meminfo"), re.MULTILINE)
    return min(int(found[1]) << 10 if found else math.inf, memory_left())


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
