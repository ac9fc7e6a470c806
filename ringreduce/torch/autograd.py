"""The collectives as autograd sees them: what each does forward, and what becomes of the gradient.

A gradient travels in the order in which autograd reaches it, which is the same on all ranks that run the same model.
The gradient of a gradient works too: backward() is made of these same functions.
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.ops import Adasum, Average, ReduceOp, Sum
from ringreduce.process_sets import ProcessSet
from ringreduce.torch import adasum
from ringreduce.torch.submission import allgathers, received, reducescatters
from ringreduce.torch.tensors import operand, source


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """function.apply, for which torch has no types."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


class Allreduce(torch.autograd.Function):
    """The gradient of an all-reduce is the same all-reduce of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: int, pre: float, post: float, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.arguments = (op, pre, post, process_set)
        tensor = source(tensor)
        output = torch.empty_like(tensor)
        if op == Adasum:
            adasum.submit([tensor], [output], name, pre, post, process_set, None).wait()
        else:
            process_set.group.allreduce(operand(tensor), operand(output), op, pre, post, name)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op = _linear(ctx.arguments[0])
        return call(Allreduce, grads[0], None, op, *ctx.arguments[1:]), None, None, None, None, None


class GroupedAllreduce(torch.autograd.Function):
    """Allreduce of several tensors as one operation, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, pre: float, post: float, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (op, pre, post, process_set)
        sources = [source(tensor) for tensor in tensors]
        outputs = tuple(torch.empty_like(tensor) for tensor in sources)
        if op == Adasum:
            adasum.submit(sources, outputs, name, pre, post, process_set, None).wait()
            return outputs
        work = process_set.group.allreduce_async(
            [operand(tensor) for tensor in sources], [operand(output) for output in outputs], op, pre, post, name
        )
        work.wait()
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op = _linear(ctx.arguments[0])
        return None, None, None, None, None, *call(GroupedAllreduce, None, op, *ctx.arguments[1:], *grads)


class Allgather(torch.autograd.Function):
    """The gradient of an all-gather is this rank's rows of the averaged gradient, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        tensor = source(tensor)
        work = process_set.group.allgather_async(operand(tensor), name)
        work.wait()
        output = received(work, tensor)
        ctx.process_set = process_set
        ctx.start = sum(work.counts[: process_set.group.rank])
        ctx.rows = work.counts[process_set.group.rank]
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = call(Allreduce, grads[0], None, Average, 1.0, 1.0, ctx.process_set)
        return averaged.narrow(0, ctx.start, ctx.rows), None, None


class GroupedAllgather(torch.autograd.Function):
    """Allgather of several tensors at once, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        sources = [source(tensor) for tensor in tensors]
        works = allgathers(sources, name, process_set)
        works.wait()
        rank = process_set.group.rank
        ctx.process_set = process_set
        ctx.rows = [(sum(work.counts[:rank]), work.counts[rank]) for work in works.each]
        return tuple(received(work, tensor) for work, tensor in zip(works.each, sources, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = call(GroupedAllreduce, None, Average, 1.0, 1.0, ctx.process_set, *grads)
        return None, None, *(grad.narrow(0, *rows) for grad, rows in zip(averaged, ctx.rows, strict=True))


class Broadcast(torch.autograd.Function):
    """The gradient of a broadcast is the averaged gradient on the root and zero elsewhere, as in Horovod."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet) -> torch.Tensor:
        ctx.process_set, ctx.is_root = process_set, process_set.group.rank == root
        output = source(tensor).clone()
        process_set.group.broadcast_async(operand(output), root, name).wait()
        return output

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        averaged = call(Allreduce, grads[0], None, Average, 1.0, 1.0, ctx.process_set)
        return averaged if ctx.is_root else torch.zeros_like(averaged), None, None, None


class Alltoall(torch.autograd.Function):
    """The gradient of an all-to-all sends every row's gradient back to the rank that it came from.

    The second output, the rows received from each rank, has no gradient. Rows that were sent to nobody get zeros.
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensor = source(tensor)
        work = process_set.group.alltoall_async(operand(tensor), splits, name)
        work.wait()
        ctx.process_set, ctx.counts, ctx.rows = process_set, list(work.counts), tensor.shape[0]
        counts = torch.tensor(ctx.counts)
        ctx.mark_non_differentiable(counts)
        return received(work, tensor), counts

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad, _ = call(Alltoall, grads[0], ctx.counts, None, ctx.process_set)
        if len(grad) < ctx.rows:
            grad = torch.cat([grad, grad.new_zeros(ctx.rows - len(grad), *grad.shape[1:])])
        return grad, None, None, None


class GroupedReducescatter(torch.autograd.Function):
    """The gradient of a reduce-scatter is the gathered gradient, times the number of ranks for Sum, as in Horovod."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: int, pre: float, post: float, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = (op, pre * post, process_set)
        outputs, works = reducescatters([source(tensor) for tensor in tensors], name, op, pre, post, process_set)
        works.wait()
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        op, factor, process_set = ctx.arguments
        if op == Sum:
            factor *= process_set.group.size
        scaled = [grad if factor == 1.0 else grad * factor for grad in grads]
        return None, None, None, None, None, *call(GroupedAllgather, None, process_set, *scaled)


def _linear(op: int) -> int:
    if op in (Average, Sum):
        return op
    raise InvalidArgumentError(f"allreduce has a gradient for op Average and Sum, not for {ReduceOp(op).name}")
