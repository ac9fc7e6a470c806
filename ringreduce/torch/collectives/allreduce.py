"""All-reduce of tensors: one or several, in place or not, waited for or not; with gradients where autograd asks.

Arguments are Horovod's. `op` defaults to Average; `average` is Horovod's old spelling of it. Operations with a `name`
may be submitted in any order, the others in one order on all ranks. Errors are those of ringreduce.allreduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import empty_like

from ringreduce.collectives.handles import Handle
from ringreduce.collectives.ops import Adasum
from ringreduce.common.arguments import choose
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of, no_process_set
from ringreduce.torch.collectives import adasum, autograd
from ringreduce.torch.collectives.members import place_of
from ringreduce.torch.compression import Compression, Compressor, NoneCompressor, wire_for
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tensors import (
    Operand,
    are_tracked,
    handle,
    in_place,
    is_tracked,
    on_stream,
    operand,
    overwritten,
    source,
)
from ringreduce.torch.tracing import ASYNC, is_compiling, traceable, untraced

T = TypeVar("T")


@traceable
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks into a new one; differentiable (the gradient is reduced the same way).

    Args:
        tensor: any shape and supported dtype, the same on all ranks; copied first where it is not contiguous.
        name: identifies the tensor; None uses the order of calls.
        compression: applied before, and undone after; of float32 on several hosts, between hosts
            (docs/user/optimizer.md).
        op: Average (default), Sum, Min, Max, Product, ...; Adasum: see adasum.py for what it is and costs.
        prescale_factor, postscale_factor: multiply each input, and the result.
        process_set: the ranks that take part.

    >>> hvd.allreduce(torch.tensor([1.0, 2.0]), op=hvd.Sum)  # on two ranks
    tensor([2., 4.])
    """
    op = choose(op, average, is_compiling())
    if compression is not NoneCompressor:
        received = _over_wire([tensor], compression, name, op, prescale_factor, postscale_factor, process_set)
        if received is not None:
            return received[0]
        compressed, ctx = compression.compress(tensor)
        reduced = allreduce(
            compressed, None, name, Compression.none, op, prescale_factor, postscale_factor, process_set
        )
        return compression.decompress(reduced, ctx)
    if is_compiling():
        return autograd.allreduce(tensor, name, op, prescale_factor, postscale_factor, place_of(process_set))
    if is_tracked(tensor):
        return autograd.allreduce(tensor, name, op, prescale_factor, postscale_factor, process_set)
    if op == Adasum:
        return allreduce_async(
            tensor, None, name, op, prescale_factor, postscale_factor, process_set
        ).wait_or_withdraw()
    memory: Operand | None
    try:
        memory = operand(tensor)
    except InvalidArgumentError:
        memory = None
    if memory is None:  # not contiguous, or lazily negated or zero: a copy will do
        tensor = source(tensor)
        memory = operand(tensor)
    output = empty_like(tensor)
    result = (output.data_ptr(), memory[1], memory[2], output) if len(memory) == 4 else operand(output)
    try:
        group = process_set.group
    except AttributeError:
        raise no_process_set(process_set) from None
    profiled(group).allreduce(memory, result, op, prescale_factor, postscale_factor, name)
    return output


@traceable
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """allreduce() in place: overwrites the tensor, which must be contiguous, and returns it. Not differentiable."""
    op = choose(op, average, is_compiling())
    if is_compiling():
        plain = tensor.detach()
        plain.copy_(allreduce(plain, None, name, Compression.none, op, prescale_factor, postscale_factor, process_set))
        return tensor
    if op == Adasum:
        return allreduce_async_(
            tensor, None, name, op, prescale_factor, postscale_factor, process_set
        ).wait_or_withdraw()
    memory = overwritten(tensor)
    try:
        group = process_set.group
    except AttributeError:
        raise no_process_set(process_set) from None
    profiled(group).allreduce(memory, memory, op, prescale_factor, postscale_factor, name)
    return tensor


@untraced(ASYNC)
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """allreduce() without waiting: synchronize(handle) gives the result. The tensor must not change until then."""
    tensor = source(tensor)
    output = empty_like(tensor)
    return _submit(
        [tensor], [output], name, choose(op, average), prescale_factor, postscale_factor, process_set, output
    )


@untraced(ASYNC)
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[torch.Tensor]:
    """allreduce_() without waiting. The tensor must be left alone until the handle is done."""
    tensors = [tensor]
    return _submit(tensors, tensors, name, choose(op, average), prescale_factor, postscale_factor, process_set, tensor)


@traceable
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allreduce() of several tensors as one operation, which succeeds or fails as a whole. Returns a list."""
    op = choose(op, average, is_compiling())
    received = _over_wire(tensors, compression, name, op, prescale_factor, postscale_factor, process_set)
    if received is not None:
        return received
    compressed, contexts = zip(*map(compression.compress, tensors), strict=True) if tensors else ((), ())
    settings = (name, op, prescale_factor, postscale_factor)
    if is_compiling():
        outputs = autograd.grouped_allreduce(compressed, *settings, place_of(process_set))
    elif are_tracked(compressed):
        outputs = autograd.grouped_allreduce(compressed, *settings, process_set)
    else:
        outputs = grouped_allreduce_async(
            compressed, None, name, op, prescale_factor, postscale_factor, process_set
        ).wait_or_withdraw()
    return [compression.decompress(output, ctx) for output, ctx in zip(outputs, contexts, strict=True)]


@traceable
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """grouped_allreduce() in place: overwrites the tensors and returns them as a list."""
    if is_compiling():
        plain = [tensor.detach() for tensor in tensors]
        settings = (Compression.none, op, prescale_factor, postscale_factor, process_set)
        for target, output in zip(plain, grouped_allreduce(plain, average, name, *settings), strict=True):
            target.copy_(output)
        return list(tensors)
    return grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    ).wait_or_withdraw()


@untraced(ASYNC)
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """grouped_allreduce() without waiting: synchronize(handle) gives the list."""
    tensors = [source(tensor) for tensor in tensors]
    outputs = [empty_like(tensor) for tensor in tensors]
    return _submit(tensors, outputs, name, choose(op, average), prescale_factor, postscale_factor, process_set, outputs)


@untraced(ASYNC)
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle[list[torch.Tensor]]:
    """grouped_allreduce_() without waiting. The tensors must be left alone until the handle is done."""
    tensors = list(tensors)
    return _submit(tensors, tensors, name, choose(op, average), prescale_factor, postscale_factor, process_set, tensors)


def _over_wire(
    tensors: Sequence[torch.Tensor],
    compression: type[Compressor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
) -> list[torch.Tensor] | None:
    """The reduced tensors where a wire of the core takes the place of the compressor, else None.

    Not in a graph, and not where autograd looks on: operators and their gradients are of the compressed tensor.
    """
    if is_compiling() or are_tracked(tensors):
        return None
    wire = wire_for(compression, [tensor.dtype for tensor in tensors], op, process_set)
    if wire is None:
        return None
    sources = [source(tensor) for tensor in tensors]
    outputs = [empty_like(tensor) for tensor in sources]
    return _submit(
        sources, outputs, name, op, prescale_factor, postscale_factor, process_set, outputs, wire
    ).wait_or_withdraw()


def _submit(
    sources: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    result: T,
    wire: str | None = None,
) -> Handle[T]:
    if outputs is sources:
        srcs = dsts = [in_place(tensor) for tensor in sources]
    else:
        srcs, dsts = ([operand(tensor) for tensor in tensors] for tensors in (sources, outputs))
    if op == Adasum:
        settings = (name, prescale_factor, postscale_factor, process_set, result)
        return adasum.submit(sources, outputs, *settings)
    work = profiled(group_of(process_set)).allreduce_async(
        srcs, dsts, op, prescale_factor, postscale_factor, name, wire
    )
    return handle(on_stream(work, *outputs), lambda _: result)
