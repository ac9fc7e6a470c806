"""Collectives that move data without reducing it. reductions.py says what all collectives have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ringreduce.collectives.data_movement import narrow
from ringreduce.errors import InvalidArgumentError
from ringreduce.jax.call import Call
from ringreduce.jax.operands import array, members, rows_of
from ringreduce.jax.primitives import bind
from ringreduce.jax.versions import is_traced, is_tracing
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of


def allgather(tensor: Any, *, name: str | None = None, process_set: ProcessSet = global_process_set) -> jax.Array:
    """Concatenates every rank's array along the first dimension, in rank order, on every rank.

    Args:
        tensor: at least one dimension. Outside of jit and grad the first may differ between ranks; inside, where shapes
            are fixed when the program is compiled, all are the same on all ranks, or the call fails when it runs.

    Returns:
        The joined array. Has a gradient.
    """
    set_id = members(process_set, "allgather")
    operand = array(tensor, "allgather")
    size = process_set.group.size
    received = (rows_of(operand, "Allgather"),) * size
    if not is_traced(operand) and not is_tracing():
        received = _exchanged(Call("allgather", set_id, _part(name), rows=size), [operand.shape[0]])
    return bind(Call("allgather", set_id, name, rows=sum(received), received=received), operand)[0]


def broadcast(
    tensor: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> jax.Array:
    """The root's array, on every rank.

    Args:
        tensor: the same shape and dtype on all ranks; its content matters on the root only.
        root_rank: global rank whose content it is.

    Returns:
        An array of that shape. Has a gradient.
    """
    return broadcast_all([tensor], root_rank, name, process_set)[0]


def broadcast_all(tensors: Sequence[Any], root_rank: int, name: str | None, process_set: ProcessSet) -> list[jax.Array]:
    """broadcast() of several arrays by one call of a handler."""
    set_id = members(process_set, "broadcast")
    root = process_set.position(root_rank, "broadcast")  # raises where it is no member
    operands = [array(tensor, "broadcast", process_set.group.rank == root) for tensor in tensors]
    return bind(Call("broadcast", set_id, name, root=int(root_rank), in_place=True), *operands) if operands else []


def alltoall(
    tensor: Any,
    splits: Sequence[int] | Any | None = None,
    *,
    received_splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends a part of the rows to each rank, and joins what comes from all, in rank order.

    Args:
        tensor: at least one dimension; all but the first are the same on all ranks.
        splits: how many rows go to each rank, as concrete numbers; None: equal parts.
        received_splits: how many rows come from each rank. Needed inside jit when splits are given, since the shape of
            the result is fixed there; outside the ranks tell each other.

    Returns:
        The received rows; with splits also how many came from each rank, as an array of int32. Has a gradient. Where
        a count needs it, int64: a NumPy array if JAX is set to 32 bits (jax_enable_x64).
    """
    set_id = members(process_set, "alltoall")
    operand = array(tensor, "alltoall")
    rows, size = rows_of(operand, "alltoall"), process_set.group.size
    if splits is None:
        if rows % size != 0:
            raise InvalidArgumentError(
                "splits not provided, but first dimension of tensor is not an even multiple of the number of workers."
            )
        equal = (rows // size,) * size
        return bind(Call("alltoall", set_id, name, rows=rows, received=equal), operand)[0]
    sent = _numbers(splits, size, "splits")
    if sum(sent) > rows:
        raise InvalidArgumentError("Sum of splits entries is greater than the first dimension of tensor.")
    if received_splits is not None:
        received = _numbers(received_splits, size, "received_splits")
    elif is_tracing():
        raise InvalidArgumentError(
            "alltoall with splits inside jit needs received_splits, how many rows come from each rank: the shape of "
            "the result is fixed when the program is compiled"
        )
    else:
        received = _exchanged(Call("alltoall", set_id, _part(name), rows=size), sent)
    call = Call("alltoall", set_id, name, rows=sum(received), splits=sent, received=received)
    counts = narrow(received)
    has_dtype = jax.dtypes.canonicalize_dtype(counts.dtype) == counts.dtype
    return bind(call, operand)[0], jax.numpy.asarray(counts) if has_dtype else counts


def barrier(*, name: str | None = None, process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set have come here. Inside jit: orders the collectives before and after it."""
    getattr(group_of(process_set), "barrier")  # noqa: B009  # raises where there is no group
    assert process_set.process_set_id is not None
    bind(Call("barrier", process_set.process_set_id, name))


def _exchanged(call: Call, counts: Sequence[int]) -> tuple[int, ...]:
    """What a call makes of rows of one count each. JAX may be set to 32 bits, so a count travels as two integers."""
    halves = np.array(counts, np.int64).view(np.int32).reshape(-1, 2)
    return tuple(np.ascontiguousarray(bind(call, halves)[0]).view(np.int64).ravel().tolist())


def _numbers(splits: Any, size: int, what: str) -> tuple[int, ...]:
    if is_traced(splits):
        raise InvalidArgumentError(f"alltoall expects concrete {what}: they decide about the shape of the result")
    numbers = np.asarray(splits)
    if numbers.ndim != 1 or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidArgumentError("alltoall expects a 1D splits tensor of integers")
    if len(numbers) != size:
        raise InvalidArgumentError("Number of entries in splits does not equal number of workers.")
    if (numbers < 0).any():
        raise InvalidArgumentError(f"alltoall: {what} must not be negative: {numbers.tolist()}")
    return tuple(numbers.tolist())


def _part(name: str | None) -> str | None:
    return None if name is None else f"{name}.sz"
