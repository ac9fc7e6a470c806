"""Collectives of tensors that move data without reducing it, and join. allreduce.py has the all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.collectives import reductions
from ringreduce.collectives.data_movement import rows_for_each
from ringreduce.collectives.handles import Handle
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of
from ringreduce.torch.collectives import autograd
from ringreduce.torch.collectives.members import place_of
from ringreduce.torch.profiling import profiled, ranged
from ringreduce.torch.submission import allgathers, exchange, gather, received
from ringreduce.torch.tensors import are_tracked, handle, in_place, is_tracked, on_stream, operand, source
from ringreduce.torch.tracing import ASYNC, BLOCKS, is_compiling, traceable, untraced


@traceable
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates every rank's tensor along the first dimension, in rank order, on every rank; differentiable.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.
    """
    if is_compiling():
        return autograd.grouped_allgather([tensor], name, None, place_of(process_set))[0][0]
    if is_tracked(tensor):
        return autograd.grouped_allgather([tensor], name, None, process_set)[0][0]
    return allgather_async(tensor, name, process_set).wait_or_withdraw()


@untraced(ASYNC)
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """allgather() without waiting. The tensor must not change until the handle is done."""
    tensor = source(tensor)
    return handle(gather(group_of(process_set), operand(tensor), tensor, name), lambda work: received(work, tensor))


@traceable
def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """allgather() of several tensors at once; differentiable. Returns a list."""
    if is_compiling():
        return list(autograd.grouped_allgather(tensors, name, None, place_of(process_set))[0])
    if are_tracked(tensors):
        return list(autograd.grouped_allgather(tensors, name, None, process_set)[0])
    return grouped_allgather_async(tensors, name, process_set).wait_or_withdraw()


@untraced(ASYNC)
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[list[torch.Tensor]]:
    """grouped_allgather() without waiting: synchronize(handle) gives the list."""
    sources = [source(tensor) for tensor in tensors]
    works = allgathers(sources, name, process_set)
    return handle(works, lambda done: [received(work, like) for work, like in zip(done.each, sources, strict=True)])


@traceable
def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor, on every rank, as a new one; differentiable.

    Args:
        tensor: the same shape and dtype on all ranks; the content matters on the root only.
        root_rank: global rank whose tensor it is.
    """
    if is_compiling():
        return autograd.broadcast(tensor, root_rank, name, place_of(process_set))
    if is_tracked(tensor):
        return autograd.broadcast(tensor, root_rank, name, process_set)
    return broadcast_async(tensor, root_rank, name, process_set).wait_or_withdraw()


@untraced(ASYNC)
def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """broadcast() without waiting. The tensor may change at once: the operation works on its own copy."""
    return broadcast_async_(source(tensor).clone(), root_rank, name, process_set)


@traceable
def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """broadcast() in place: overwrites the tensor, which must be contiguous, with the root's and returns it."""
    if is_compiling():
        plain = tensor.detach()
        plain.copy_(autograd.broadcast(plain, root_rank, name, place_of(process_set)))
        return tensor
    return broadcast_async_(tensor, root_rank, name, process_set).wait_or_withdraw()


@untraced(ASYNC)
def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """broadcast_() without waiting. The tensor must be left alone until the handle is done."""
    submit = profiled(group_of(process_set)).broadcast_async
    root = process_set.position(root_rank, "broadcast")
    return handle(on_stream(submit(in_place(tensor), root, name), tensor), lambda _: tensor)


@traceable
def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Sends rows of the tensor to every rank, and concatenates the rows that come from them, in rank order.

    Differentiable: every row's gradient goes back to where the row came from.

    Args:
        tensor: at least one dimension; all but the first, and the dtype, are the same on all ranks.
        splits: how many rows go to each rank, in rank order: 1-D integers, one per rank; rows beyond their sum stay.
            None: equal parts.

    Returns:
        The received rows. With splits, (rows, received_splits): also how many came from each rank, int32 (int64 where
        a count needs it), on the device of splits where that is a tensor. In a graph of torch.compile always int32.

    Raises:
        InvalidArgumentError: in a graph, with splits: more rows have come from one rank than int32 holds.

    >>> hvd.alltoall(torch.arange(4) + 10 * hvd.rank(), splits=[1, 3])  # on rank 0 of two
    (tensor([ 0, 10]), tensor([1, 1], dtype=torch.int32))
    """
    rows = splits if splits is None or isinstance(splits, torch.Tensor) else torch.as_tensor(splits, device="cpu")
    if is_compiling():
        output, counts = autograd.alltoall(tensor, rows, name, place_of(process_set))
        received_splits = counts.to("cpu" if rows is None else rows.device, torch.int32)
    elif is_tracked(tensor):
        output, counts = autograd.alltoall(tensor, rows, name, process_set)
        received_splits = _received_splits(counts.tolist(), splits)
    else:
        output, received_splits = alltoall_async(tensor, splits, name, process_set).wait_or_withdraw()
    return output if splits is None else (output, received_splits)


@untraced(ASYNC)
def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[tuple[torch.Tensor, torch.Tensor]]:
    """alltoall() without waiting; synchronize(handle) gives (rows, received_splits) in either case, as in Horovod."""
    tensor = source(tensor)
    work = exchange(group_of(process_set), tensor, _rows_for_each(splits), name)
    return handle(work, lambda done: (received(done, tensor), _received_splits(done.counts, splits)))


@traceable
def barrier(process_set: ProcessSet = global_process_set, *, name: str | None = None) -> None:
    """Blocks until every rank of the process set has called it."""
    if is_compiling():
        torch.ops.ringreduce.barrier(name, place_of(process_set))
    else:
        profiled(group_of(process_set)).barrier(name)


@untraced(BLOCKS)
@ranged("join")
def join(device: int = -1) -> int:
    """Says that this rank has no more data, and blocks until every rank has; adds nothing to all-reduces meanwhile.

    Args:
        device: for Horovod's signature; without effect here.

    Returns:
        The last rank to join, the same on all ranks.
    """
    return reductions.join()


def _rows_for_each(splits: torch.Tensor | Sequence[int] | None) -> list[int] | None:
    return rows_for_each(splits.detach().cpu().numpy() if isinstance(splits, torch.Tensor) else splits)


def _received_splits(counts: Sequence[int], splits: torch.Tensor | Sequence[int] | None) -> torch.Tensor:
    dtype = torch.int32 if max(counts, default=0) <= torch.iinfo(torch.int32).max else torch.int64
    return torch.tensor(counts, dtype=dtype, device=splits.device if isinstance(splits, torch.Tensor) else "cpu")
