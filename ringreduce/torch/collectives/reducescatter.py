"""Reduce-scatter of tensors: one or several, waited for or not; with gradients where autograd asks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringreduce.collectives.handles import Handle
from ringreduce.collectives.ops import Average
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.collectives import autograd
from ringreduce.torch.collectives.members import place_of
from ringreduce.torch.compression import Compression, Compressor
from ringreduce.torch.submission import reducescatters
from ringreduce.torch.tensors import are_any, are_tracked, handle, source
from ringreduce.torch.tracing import ASYNC, is_compiling, traceable, untraced


@traceable
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and leaves each rank its own rows of the result; differentiable.

    The gradient is Horovod's: the ranks' gradients concatenated, times the number of ranks for op Sum.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks.
        name: identifies the tensor; None uses the order of calls.
        compression: applied before, and undone after.
        op: Average (default) or Sum.
        prescale_factor, postscale_factor: multiply each input, and the result.

    Returns:
        A new tensor of dim0 // size rows; the first dim0 % size ranks get one more.

    Raises:
        InvalidArgumentError: the tensor has no dimension.
        HorovodInternalError: op is neither Average nor Sum.

    >>> hvd.reducescatter(torch.arange(3.0), op=hvd.Sum)  # on rank 0 of two
    tensor([0., 2.])
    """
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


@untraced(ASYNC)
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[torch.Tensor]:
    """reducescatter() without waiting: synchronize(handle) gives the rows. The tensor must not change until then."""
    sources = [source(tensor)]
    outputs, works = reducescatters(sources, name, op, prescale_factor, postscale_factor, process_set)
    return handle(works, lambda _: outputs[0], keep=sources)


@traceable
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter() of several tensors at once; differentiable. Returns a list."""
    compressed, contexts = zip(*map(compression.compress, tensors), strict=True) if are_any(tensors) else ((), ())
    settings = (name, op, prescale_factor, postscale_factor)
    if is_compiling():
        outputs = autograd.grouped_reducescatter(compressed, *settings, place_of(process_set))
    elif are_tracked(compressed):
        outputs = autograd.grouped_reducescatter(compressed, *settings, process_set)
    else:
        outputs = grouped_reducescatter_async(
            compressed, name, op, process_set, prescale_factor, postscale_factor
        ).wait_or_withdraw()
    return [compression.decompress(output, ctx) for output, ctx in zip(outputs, contexts, strict=True)]


@untraced(ASYNC)
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle[list[torch.Tensor]]:
    """grouped_reducescatter() without waiting: synchronize(handle) gives the list."""
    sources = [source(tensor) for tensor in tensors]
    outputs, works = reducescatters(sources, name, op, prescale_factor, postscale_factor, process_set)
    return handle(works, lambda _: outputs, keep=sources)
