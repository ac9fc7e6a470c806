"""Reduce of tensors: an all-reduce of which one rank gets the result. Not in Horovod."""

from __future__ import annotations

import torch

from ringreduce.collectives.handles import Handle
from ringreduce.collectives.ops import Average
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.collectives import rooted
from ringreduce.torch.collectives.tokens import PER_RANK
from ringreduce.torch.submission import reduce_to_root
from ringreduce.torch.tensors import handle, is_tracked, source
from ringreduce.torch.tracing import ASYNC, untraced


@untraced(PER_RANK)
def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Reduces a tensor over all ranks for one of them; differentiable for op Average and Sum.

    The gradient is the root's, on every rank; for Average it is divided by the number of ranks.

    Args:
        tensor: any shape and dtype that allreduce() takes, the same on all ranks.
        root_rank: global rank that gets the result.
        name: identifies the tensor; None uses the order of calls.
        op: Average (default), Sum, Min, Max, Product, ...
        prescale_factor, postscale_factor: multiply each input, and the result.

    Returns:
        A new tensor on the root. On the others None, or where autograd follows the tensor a token: a scalar zero, to
        be added to what the rank calls backward() on, as gather() shows.
    """
    if not is_tracked(tensor):
        return reduce_async(
            tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set
        ).wait_or_withdraw()
    result, token = rooted.reduce(tensor, root_rank, name, op, prescale_factor, postscale_factor, process_set)
    return rooted.root_has(result, token, root_rank, process_set)


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
    """reduce() without waiting, and without a gradient. The tensor must not change until the handle is done."""
    tensor = source(tensor)
    factors = (prescale_factor, postscale_factor)
    work, output = reduce_to_root(tensor, root_rank, name, op, *factors, process_set)
    return handle(work, lambda _: output)
