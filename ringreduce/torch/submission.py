"""How tensors are handed to the core and results taken back, the same with autograd and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce._core import Group, Work
from ringreduce.collectives.handles import Submitted, Works, numbered
from ringreduce.collectives.ops import Average, Sum, check_op
from ringreduce.errors import HorovodInternalError, InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, group_of
from ringreduce.torch import cuda
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tensors import Operand, apart, on_stream, operand, refusal, source


def allgathers(tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet) -> Works:
    """Submits an all-gather of each tensor; all operands are checked before the first goes."""
    names = [numbered(name, index, len(tensors)) for index in range(len(tensors))]
    return gathers(group_of(process_set), tensors, names)


def gathers(group: Group, tensors: Sequence[torch.Tensor], names: Sequence[str | None]) -> Works:
    """allgathers() by these names."""
    rooms = [_room(tensor, group) for tensor in tensors]
    calls = [
        (operand(tensor), name, None if room is None else operand(room))
        for tensor, name, room in zip(tensors, names, rooms, strict=True)
    ]
    with Submitted(profiled(group).allgather_async, calls) as works:
        each = zip(works, tensors, rooms, strict=True)
        return Works([on_stream(work, tensor, room=room) for work, tensor, room in each])


def _room(tensor: torch.Tensor, group: Group) -> torch.Tensor | None:
    """Of a GPU's tensor, where its all-gather puts the result; of others the core makes room."""
    return cuda.room_for(tensor, group.size) if tensor.is_cuda and tensor.dim() else None


def gather(group: Group, memory: Operand, tensor: torch.Tensor, name: str | None) -> Work:
    """Submits an all-gather of a tensor and its operand; received() has the result."""
    group = profiled(group)
    if not tensor.is_cuda:
        return group.allgather_async(memory, name)
    room = _room(tensor, group)
    return on_stream(group.allgather_async(memory, name, None if room is None else operand(room)), tensor, room=room)


def exchange(group: Group, tensor: torch.Tensor, rows: Sequence[int] | None, name: str | None) -> Work:
    """Submits an all-to-all of so many rows for each rank; received() has the result."""
    memory, group = operand(tensor), profiled(group)
    if not tensor.is_cuda:
        return group.alltoall_async(memory, rows, name)
    room = torch.empty_like(tensor) if tensor.dim() else None
    work = group.alltoall_async(memory, rows, name, None if room is None else operand(room))
    return on_stream(work, tensor, room=room)


def reducescatters(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, pre: float, post: float, process_set: ProcessSet
) -> tuple[list[torch.Tensor], Works]:
    """Submits a reduce-scatter of each tensor; all operands are checked before the first goes.

    Raises:
        InvalidArgumentError: a tensor has no dimension.
        HorovodInternalError: op is neither Average nor Sum.
    """
    check_op(op)
    group = profiled(group_of(process_set))
    submit = group.reducescatter_async
    if op not in (Average, Sum):
        raise HorovodInternalError("Reducescatter currently only supports AVERAGE and SUM.")
    pairs, outputs = [], []
    for tensor in tensors:
        if tensor.dim() == 0:
            raise InvalidArgumentError("Reducescatter does not support scalar inputs")
        outputs.append(tensor.new_empty(own_rows(tensor.shape[0], group.rank, group.size), *tensor.shape[1:]))
        pairs.append((operand(tensor), operand(outputs[-1])))
    calls = [(src, dst, op, pre, post, numbered(name, at, len(pairs))) for at, (src, dst) in enumerate(pairs)]
    with Submitted(submit, calls) as works:
        return outputs, Works([on_stream(work, output) for work, output in zip(works, outputs, strict=True)])


def reduce_to_root(
    tensor: torch.Tensor, root_rank: int, name: str | None, op: int, pre: float, post: float, process_set: ProcessSet
) -> tuple[Work, torch.Tensor | None]:
    """Submits a reduce. On the root the second value is where the result comes, elsewhere None."""
    check_op(op)
    group = profiled(group_of(process_set))
    root = process_set.position(root_rank, "reduce")
    output = torch.empty_like(tensor) if group.rank == root else None
    target = tensor if output is None else output  # the core writes it on the root only
    work = group.reduce_async(operand(tensor), operand(target), op, pre, post, root, name)
    return on_stream(work, target), output


def gather_to_root(
    tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
) -> tuple[Work, bool]:
    """Submits a gather, and whether this rank is the root, for which received() has the result."""
    group = profiled(group_of(process_set))
    root = process_set.position(root_rank, "gather")
    return on_stream(group.gather_async(operand(tensor), root, name), tensor), group.rank == root


def scatter_from_root(
    tensor: torch.Tensor | None,
    output: torch.Tensor,
    target: Operand,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
) -> tuple[Work, torch.Tensor | None]:
    """Submits a scatter into the output, whose operand the target is. The second value must live until its end.

    Raises:
        InvalidArgumentError: the root's tensor is not size times the output.
    """
    group = profiled(group_of(process_set))
    root = process_set.position(root_rank, "scatter")
    if group.rank != root:
        return on_stream(group.scatter_async(None, target, root, name), output), None
    if not isinstance(tensor, torch.Tensor):
        raise refusal(tensor)
    if tensor.dtype != output.dtype or tensor.numel() != output.numel() * group.size:
        raise InvalidArgumentError(
            f"scatter of {tensor.dtype} {list(tensor.shape)} into {group.size} times {output.dtype} "
            f"{list(output.shape)}: the root's tensor has {group.size} times the elements of output, in its dtype"
        )
    whole = apart(source(tensor), output, -root * output.numel())
    return on_stream(group.scatter_async(operand(whole), target, root, name), output), whole


def own_rows(rows: int, rank: int, size: int) -> int:
    """How many of the rows reduce-scatter leaves with a rank: the first rows % size ranks have one more."""
    return rows // size + (rank < rows % size)


def received(work: Any, like_rows_of: torch.Tensor) -> torch.Tensor:
    """What an operation brought, as rows of the tensor's row shape and dtype. Of a GPU's tensor: waits for it."""
    if isinstance(work, cuda.DeviceWork):
        return work.received(like_rows_of)
    shape = (sum(work.counts), *like_rows_of.shape[1:])
    if not work.output:
        return like_rows_of.new_empty(shape)
    # Not a view: what a Function of autograd returns as one cannot be changed in place.
    return torch.frombuffer(work.output, dtype=like_rows_of.dtype).resize_(shape)
