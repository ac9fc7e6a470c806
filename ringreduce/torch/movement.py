"""Collectives of tensors that move data without reducing it, and join. reduce.py has the all-reduces."""

from __future__ import annotations

import torch
from torch import is_grad_enabled

from ringreduce import reduction
from ringreduce.handles import Handle
from ringreduce.process_sets import ProcessSet, global_process_set
from ringreduce.torch import autograd
from ringreduce.torch.autograd import call, received
from ringreduce.torch.tensors import operand, source


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenates every rank's tensor along the first dimension, in rank order, on every rank; differentiable.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.
    """
    if tensor.requires_grad and is_grad_enabled():
        gathered: torch.Tensor = call(autograd.Allgather, tensor, name, process_set)
        return gathered
    return allgather_async(tensor, name, process_set).wait()


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """allgather() without waiting. The tensor must not change until the handle is done."""
    tensor = source(tensor)
    return Handle(process_set.group.allgather_async(operand(tensor), name), lambda work: received(work, tensor))


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor, on every rank, as a new one; differentiable.

    Args:
        tensor: the same shape and dtype on all ranks; the content matters on the root only.
        root_rank: global rank whose tensor it is.
    """
    if tensor.requires_grad and is_grad_enabled():
        root = process_set.position(root_rank, "broadcast")
        output: torch.Tensor = call(autograd.Broadcast, tensor, root, name, process_set)
        return output
    return broadcast_async(tensor, root_rank, name, process_set).wait()


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """broadcast() without waiting. The tensor may change at once: the operation works on its own copy."""
    return broadcast_async_(source(tensor).clone(), root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """broadcast() in place: overwrites the tensor, which must be contiguous, with the root's and returns it."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """broadcast_() without waiting. The tensor must be left alone until the handle is done."""
    submit = process_set.group.broadcast_async
    root = process_set.position(root_rank, "broadcast")
    return Handle(submit(operand(tensor), root, name), lambda _: tensor)


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and blocks until every rank has; adds nothing to all-reduces meanwhile.

    Args:
        device: for Horovod's signature; without effect here.

    Returns:
        The last rank to join, the same on all ranks.
    """
    return reduction.join()
