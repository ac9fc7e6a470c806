"""Reduce-scatter and reduce, barrier and join. ops.py says what all collectives have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringreduce import state
from ringreduce.collectives.buffers import empty, empty_like, native, readable, result
from ringreduce.collectives.handles import Handle, Submitted, Works, numbered
from ringreduce.collectives.ops import Average, check_op
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ringreduce._core import Group
    from ringreduce.collectives.buffers import Memory


def reducescatter(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a tensor over all ranks and leaves each rank its own rows of the result.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks.
        op, prescale_factor, postscale_factor: as in allreduce().

    Returns:
        A new ndarray of dim0 // size rows; the first dim0 % size ranks get one more.
    """
    return reducescatter_async(
        tensor,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    ).wait_or_withdraw()


def reducescatter_async(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """reducescatter() without waiting. The tensor must not change until the handle is done."""
    check_op(op)
    group = group_of(process_set)
    submit = group.reducescatter_async
    source = readable(tensor)
    output = _own_rows(source, group)
    work = submit(native(source), native(output), op, prescale_factor, postscale_factor, name)
    return Handle(work, lambda _: result(tensor, output), keep=source)


def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """reducescatter() of several tensors, all in flight together. Returns a list of new ndarrays."""
    return grouped_reducescatter_async(
        tensors,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    ).wait_or_withdraw()


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[Any]]:
    """grouped_reducescatter() without waiting. The tensors must not change until the handle is done."""
    check_op(op)
    group = group_of(process_set)
    tensors = list(tensors)
    sources = [readable(tensor) for tensor in tensors]
    outputs = [_own_rows(source, group) for source in sources]  # all are checked before the first goes
    calls = [
        (native(source), native(output), op, prescale_factor, postscale_factor, numbered(name, index, len(tensors)))
        for index, (source, output) in enumerate(zip(sources, outputs, strict=True))
    ]
    with Submitted(group.reducescatter_async, calls) as works:
        return Handle(
            Works(works),
            lambda _: [result(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)],
            keep=sources,
        )


def reduce(
    tensor: Any,
    root_rank: int,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduces a tensor over all ranks for one of them.

    Args:
        tensor: any shape and supported dtype, the same on all ranks.
        root_rank: global rank that gets the result.
        op, prescale_factor, postscale_factor: as in allreduce().

    Returns:
        A new ndarray of the tensor's shape and dtype on the root; None on the others, perhaps before the root has it.
    """
    return reduce_async(
        tensor,
        root_rank,
        name=name,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
    ).wait_or_withdraw()


def reduce_async(
    tensor: Any,
    root_rank: int,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[Any]:
    """reduce() without waiting. The tensor must not change until the handle is done."""
    check_op(op)
    group = group_of(process_set)
    submit = group.reduce_async
    root = process_set.position(root_rank, "reduce")
    source = readable(tensor)
    output = empty_like(source) if group.rank == root else None
    target = native(source if output is None else output)  # not written outside the root
    work = submit(native(source), target, op, prescale_factor, postscale_factor, root, name)
    return Handle(work, lambda _: None if output is None else result(tensor, output), keep=source)


def barrier(process_set: ProcessSet = global_process_set, *, name: str | None = None) -> None:
    """Blocks until every rank of the process set has called it."""
    state.finish_in_flight()
    group_of(process_set).barrier(name)


def join(process_set: ProcessSet = global_process_set) -> int:
    """Says that this rank has no more data, and blocks until all ranks have said so.

    Until then the others' all-reduces go on without this rank: Sum, Min, Max and Product ignore it, Average still
    divides by the full size. Other collectives complete with an error on the ranks that call them. What this rank has
    called before counts, on a GPU and in compiled code of JAX too. A join() that was interrupted is taken up by the
    next one.

    Returns:
        The global rank that joined last, the same on all ranks.

    Raises:
        InvalidArgumentError: another thread of this rank is in join(). In the meantime so does every other operation
            of this rank on the set, send and recv excepted.
    """
    state.finish_in_flight()
    group = group_of(process_set)
    last = process_set.ranks[group.join()]
    process_set.joined_last = last
    process_set.joins += 1
    return last


def _own_rows(source: Memory, group: Group) -> Memory:
    """Where a reduce-scatter puts this rank's rows. Raises InvalidArgumentError for a scalar, which has none."""
    if source.ndim == 0:
        raise InvalidArgumentError("Reducescatter does not support scalar inputs")
    rows, extra = divmod(source.shape[0], group.size)
    return empty((rows + (group.rank < extra), *source.shape[1:]), source)
