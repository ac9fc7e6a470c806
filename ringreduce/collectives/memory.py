"""Registered (symmetric) memory: arrays that every rank of the host has mapped, so that all-reduce needs no copy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ringreduce import _core, state
from ringreduce.collectives.buffers import code
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job import collective_json
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringreduce.collectives.buffers import Array

PAGE = 4096
"""A region's size is a multiple of this: what _core.Segment asks for."""


def symmetric_empty(
    shape: int | Sequence[int], dtype: Any = np.float32, process_set: ProcessSet | None = None
) -> Array:
    """A new uninitialised array in registered memory. Collective over the process set.

    Every contiguous slice of it is registered too: an all-reduce of registered operands on all ranks reads and writes
    them directly. Freeing is local: the mapping goes with the last array over it, and outlives shutdown(). A forked
    child gets a copy, as of any memory.

    Args:
        shape, dtype: as for numpy.empty; they may differ between ranks, their number of bytes may not.
        process_set: the ranks that will use the array together; None is all ranks.

    Returns:
        A C-contiguous ndarray, 64-byte aligned.

    Raises:
        MismatchError: ranks asked for different numbers of bytes; nothing is allocated anywhere.
        InvalidArgumentError: the dtype is not supported, or the shape is negative or not of ints.
    """
    members = global_process_set if process_set is None else process_set
    group = group_of(members)
    element = np.dtype(dtype)
    try:
        dims = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise InvalidArgumentError(
            f"symmetric_empty: {shape!r} is no shape: give an int, or a sequence of them"
        ) from None
    code(element)
    if any(dim < 0 for dim in dims):
        raise InvalidArgumentError(f"symmetric_empty: negative dimensions are not allowed: {list(dims)}")
    nbytes = math.prod(dims) * element.itemsize
    job = state.require()
    here = job.here(members.ranks)  # other hosts have allocations of their own
    mine = members.ranks[group.rank]
    leads = mine == here[0]
    fd_exchange = collective_json.FdExchange.new() if leads else None
    gathered = collective_json.allgather_json(
        group,
        "symmetric_empty",
        [nbytes, int.from_bytes(os.urandom(7), "big"), fd_exchange.to_json() if fd_exchange else None],
    )
    sizes = [one[0] for one in gathered]
    if len(set(sizes)) > 1:
        wanted = ", ".join(f"rank {rank}: {count}" for rank, count in zip(members.ranks, sizes, strict=True))
        raise MismatchError(f"Mismatched symmetric_empty: ranks asked for different numbers of bytes ({wanted}).")
    _, uid, pair = gathered[members.ranks.index(here[0])]
    fd_exchange = fd_exchange or collective_json.FdExchange.from_json(pair)
    stride = max(PAGE, -(-nbytes // PAGE) * PAGE)
    check = partial(group.check_members, [members.ranks.index(rank) for rank in here])
    with fd_exchange.memory_file("symmetric", stride * len(here), here, mine, job.timeout_s, check) as fd:
        segment: Any = _core.Segment(fd, uid, here.index(mine), len(here), stride)
    return np.ndarray(dims, element, buffer=segment)


os.register_at_fork(
    before=_core.before_fork,
    after_in_parent=_core.after_fork_in_parent,
    after_in_child=_core.after_fork_in_child,
)
