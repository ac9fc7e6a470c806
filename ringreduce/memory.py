"""Registered (symmetric) memory: arrays that every rank of the host has mapped, so that all-reduce needs no copy."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from ringreduce import _core, agreement, state
from ringreduce.buffers import code
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.process_sets import ProcessSet, global_process_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringreduce.buffers import Array

PAGE = 4096
"""A region's size is a multiple of this: what _core.Segment asks for."""


def symmetric_empty(
    shape: int | Sequence[int], dtype: Any = np.float32, process_set: ProcessSet | None = None
) -> Array:
    """A new uninitialised array in registered memory. Collective over the process set.

    Every contiguous slice of it is registered too: an all-reduce of registered operands on all ranks reads and writes
    them directly. Freeing is local: the mapping goes with the last array over it, and outlives shutdown().

    Args:
        shape, dtype: as for numpy.empty; they may differ between ranks, their number of bytes may not.
        process_set: the ranks that will use the array together; None is all ranks.

    Returns:
        A C-contiguous ndarray, 64-byte aligned.

    Raises:
        MismatchError: ranks asked for different numbers of bytes; nothing is allocated anywhere.
        InvalidArgumentError: the dtype is not supported, or the shape is negative.
    """
    members = global_process_set if process_set is None else process_set
    group = members.group
    element = np.dtype(dtype)
    dims = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(dim) for dim in shape)
    code(element)
    if any(dim < 0 for dim in dims):
        raise InvalidArgumentError(f"symmetric_empty: negative dimensions are not allowed: {list(dims)}")
    nbytes = math.prod(dims) * element.itemsize
    leads = group.rank == 0
    handover = agreement.Handover.announce() if leads else None
    offers = agreement.exchange(
        group,
        "symmetric_empty",
        [nbytes, int.from_bytes(os.urandom(7), "big"), handover.to_json() if handover else None],
    )
    sizes = [offer[0] for offer in offers]
    if len(set(sizes)) > 1:
        wanted = ", ".join(f"rank {rank}: {count}" for rank, count in zip(members.ranks, sizes, strict=True))
        raise MismatchError(f"Mismatched symmetric_empty: ranks asked for different numbers of bytes ({wanted}).")
    handover = handover or agreement.Handover.from_json(offers[0][2])
    uid = offers[0][1]
    stride = max(PAGE, -(-nbytes // PAGE) * PAGE)
    timeout_s = state.require().timeout_s
    with handover.segment("symmetric", stride * group.size, members.ranks, members.ranks[group.rank], timeout_s) as fd:
        segment: Any = _core.Segment(fd, uid, group.rank, group.size, stride)
    return np.ndarray(dims, element, buffer=segment)
