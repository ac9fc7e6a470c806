"""Reduce of tensors: an all-reduce of which one rank gets the result. Not in Horovod, and not differentiable."""

from __future__ import annotations

import torch

from ringreduce.collectives.handles import Handle
from ringreduce.collectives.ops import Average, check_op
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tensors import handle, on_stream, operand, source
from ringreduce.torch.tracing import ASYNC, untraced


@untraced(ASYNC)
def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Reduces a tensor over all ranks for one of them.

    Args:
        tensor: any shape and dtype that allreduce() takes, the same on all ranks.
        root_rank: global rank that gets the result.
        name: identifies the tensor; None uses the order of calls.
        op: Average (default), Sum, Min, Max, Product, ...
        prescale_factor, postscale_factor: multiply each input, and the result.

    Returns:
        A new tensor on the root; None on the others.
    """
    return reduce_async(tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set).wait()


@untraced(ASYNC)
def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor | None]:
    """reduce() without waiting. The tensor must not change until the handle is done."""
    check_op(op)
    group = profiled(process_set.group)
    root = process_set.position(root_rank, "reduce")
    tensor = source(tensor)
    output = torch.empty_like(tensor) if group.rank == root else None
    target = tensor if output is None else output  # the core writes it on the root only
    work = group.reduce_async(operand(tensor), operand(target), op, prescale_factor, postscale_factor, root, name)
    return handle(on_stream(work, target), lambda _: output)
