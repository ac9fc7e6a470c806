"""Gather of tensors to one rank, and scatter from one rank. Not in Horovod."""

from __future__ import annotations

import torch

from ringreduce.collectives.handles import Handle
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.collectives import rooted
from ringreduce.torch.collectives.tokens import PER_RANK
from ringreduce.torch.submission import gather_to_root, received, scatter_from_root
from ringreduce.torch.tensors import handle, in_place, is_tracked, source
from ringreduce.torch.tracing import ASYNC, untraced


@untraced(PER_RANK)
def gather(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor | None:
    """allgather() for one rank; differentiable.

    Every row's gradient goes back to the rank that the row came from. For that each rank has to call backward() on
    something that depends on what gather() has returned:

        scores = hvd.gather(model(images), root_rank=0)
        loss = cross_entropy(scores, labels) if hvd.rank() == 0 else scores  # a token, which is zero
        loss.backward()

    A rank with a loss of its own calls (loss + token).backward(). Autograd must follow the tensor on all ranks or on
    none: a backward pass that some ranks do not run waits for these.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.
        root_rank: global rank that gets the rows.
        name: identifies the tensor; None uses the order of calls.

    Returns:
        On the root the ranks' rows, in rank order, as a new tensor. On the others None, or where autograd follows the
        tensor a token: a scalar zero.
    """
    if not is_tracked(tensor):
        return gather_async(tensor, root_rank, name, process_set).wait_or_withdraw()
    return rooted.root_has(*rooted.gather(tensor, root_rank, name, process_set), root_rank, process_set)


@untraced(ASYNC)
def gather_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor | None]:
    """gather() without waiting, and without a gradient. The tensor must not change until the handle is done."""
    tensor = source(tensor)
    work, is_root = gather_to_root(tensor, root_rank, name, process_set)
    return handle(work, lambda done: received(done, tensor) if is_root else None)


@untraced(PER_RANK)
def scatter(
    tensor: torch.Tensor | None,
    output: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Deals the root's tensor out to all ranks, in equal parts along the first dimension; differentiable.

    The gradient is a gather: the root gets the gradients of all parts. Only `output` can say on the other ranks that
    there will be a backward pass, so it requires grad there:

        part = torch.empty(8, 10, requires_grad=True)
        part = hvd.scatter(batch if hvd.rank() == 0 else None, part, root_rank=0)
        model(part).sum().backward()  # on every rank

    Args:
        tensor: on the root: size times as many elements as output, the part for group rank 0 first. Elsewhere: None.
        output: the same shape and dtype on all ranks. Where neither it nor the root's tensor requires grad, it is
            contiguous and receives this rank's part.
        root_rank: global rank that has the tensor.
        name: identifies the tensor; None uses the order of calls.

    Returns:
        output; where it or the root's tensor requires grad, a new tensor shaped like it, and the gradient of output is
        zero. They must on all ranks or on none: a backward pass that some ranks do not run waits for these.
    """
    if is_tracked(output) or (isinstance(tensor, torch.Tensor) and is_tracked(tensor)):
        return rooted.scatter(tensor, output, root_rank, name, process_set)[0]
    return scatter_async(tensor, output, root_rank, name, process_set).wait_or_withdraw()


@untraced(ASYNC)
def scatter_async(
    tensor: torch.Tensor | None,
    output: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """scatter() without waiting, and without a gradient. Tensor and output must be left alone until then."""
    work, whole = scatter_from_root(tensor, output, in_place(output), root_rank, name, process_set)
    return handle(work, lambda _: output, keep=whole)
