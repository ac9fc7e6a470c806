"""The collectives as autograd sees them: what each does, and what becomes of gradient and tangent. Written once.

forward() is the collective itself, of plain memory. library.py makes operators for torch.compile of these same
forward(), setup_context() and backward(), and backward() goes the way that forward() went (members.py).

A gradient travels in the order in which autograd reaches it, which is the same on all ranks that run the same model.
The gradient of a gradient works too, outside of graphs: backward() is made of these same functions.

jvp() is for dual tensors (torch.autograd.forward_ad): the collectives are linear, so the tangent goes the way of the
tensor, by a second operation. That has a name of its own: where a rank has no tangent and others have, none of its
other operations is taken for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from ringreduce.collectives.data_movement import rows_for_each
from ringreduce.collectives.handles import numbered, wait_or_withdraw
from ringreduce.collectives.ops import Adasum, Average, ReduceOp, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.collectives import adasum
from ringreduce.torch.collectives.members import Members, call, process_set_of, run
from ringreduce.torch.profiling import profiled
from ringreduce.torch.submission import allgathers, exchange, received, reducescatters
from ringreduce.torch.tensors import no_tangent, on_stream, operand, source

Tensors: TypeAlias = tuple[torch.Tensor, ...]
Gradients: TypeAlias = tuple[torch.Tensor | None, ...]


class Allreduce(torch.autograd.Function):
    """The gradient of an all-reduce is the same all-reduce of the gradient."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, name: str | None, op: int, pre: float, post: float, members: Members
    ) -> torch.Tensor:
        tensor = source(tensor)
        output = torch.empty_like(tensor)
        process_set = process_set_of(members)
        if op == Adasum:
            adasum.submit([tensor], [output], name, pre, post, process_set, None).wait_or_withdraw()
        else:
            profiled(process_set.group).allreduce(operand(tensor), operand(output), op, pre, post, name)
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, ctx.settings = inputs[1], inputs[2:]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        op, *others = ctx.settings
        return allreduce(tangents[0], of_tangent(ctx.name), _linear_forward(op), *others)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        op, *others = ctx.settings
        return allreduce(grads[0], None, _linear(op), *others), None, None, None, None, None


def allreduce(
    tensor: torch.Tensor, name: str | None, op: int, pre: float, post: float, members: Members
) -> torch.Tensor:
    """Allreduce, or its operator."""
    output: torch.Tensor = run("allreduce", Allreduce, tensor, name, op, pre, post, members)
    return output


class GroupedAllreduce(torch.autograd.Function):
    """Allreduce of several tensors as one operation, forward and backward."""

    @staticmethod
    def forward(
        name: str | None, op: int, pre: float, post: float, members: Members, *tensors: torch.Tensor
    ) -> Tensors:
        sources = [source(tensor) for tensor in tensors]
        outputs = tuple(torch.empty_like(tensor) for tensor in sources)
        process_set = process_set_of(members)
        if op == Adasum:
            adasum.submit(sources, outputs, name, pre, post, process_set, None).wait_or_withdraw()
            return outputs
        work = profiled(process_set.group).allreduce_async(
            [operand(tensor) for tensor in sources], [operand(output) for output in outputs], op, pre, post, name
        )
        wait_or_withdraw(on_stream(work, *outputs))
        return outputs

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, ctx.settings = inputs[0], inputs[1:5]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        op, *others = ctx.settings
        settings = (of_tangent(ctx.name), _linear_forward(op), *others)
        return _of_floats(lambda floats: grouped_allreduce(floats, *settings), tangents[5:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        op, *others = ctx.settings
        return None, None, None, None, None, *grouped_allreduce(grads, None, _linear(op), *others)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, pre: float, post: float, members: Members
) -> Sequence[torch.Tensor]:
    """GroupedAllreduce, or its operator."""
    settings = (name, op, pre, post, members)
    if isinstance(members, int):
        in_graph: Sequence[torch.Tensor] = torch.ops.ringreduce.grouped_allreduce(list(tensors), *settings)
        return in_graph
    outputs: Sequence[torch.Tensor] = call(GroupedAllreduce, *settings, *tensors)
    return outputs


class GroupedAllgather(torch.autograd.Function):
    """The gradient of an all-gather is this rank's rows of the averaged gradient, as in Horovod; several at once.

    The last output says how many rows of each tensor came from each rank, and has no gradient.
    """

    @staticmethod
    def forward(name: str | None, rows: Sequence[int] | None, members: Members, *tensors: torch.Tensor) -> Tensors:
        sources = [source(tensor) for tensor in tensors]
        works = allgathers(sources, name, process_set_of(members))
        wait_or_withdraw(works)
        outputs = [received(work, tensor) for work, tensor in zip(works.each, sources, strict=True)]
        return *outputs, torch.tensor([work.counts for work in works.each], dtype=torch.int64, device="cpu")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, _, ctx.members, *tensors = inputs
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.mark_non_differentiable(output[-1])
        ctx.counts = output[-1]  # not saved: backward() of one output after the other would find it freed

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        settings = (of_tangent(ctx.name), None, ctx.members)
        return *_of_floats(lambda floats: grouped_allgather(floats, *settings)[0], tangents[3:]), None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        averaged = grouped_allreduce(grads[:-1], None, Average, 1.0, 1.0, ctx.members)
        return None, None, None, *own_rows(averaged, ctx.counts, ctx.rows, ctx.members)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, rows: Sequence[int] | None, members: Members
) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """GroupedAllgather, or its operator: the outputs, and how many rows of each came from each rank.

    Args:
        rows: of each output, where that is known beforehand; graphs can then be compiled for it.
    """
    if isinstance(members, int):  # one operator each: not all of inductor takes lists of tensors of unknown rows
        known = [None] * len(tensors) if rows is None else rows
        pairs = [
            torch.ops.ringreduce.allgather(tensor, numbered(name, at, len(tensors)), known[at], members)
            for at, tensor in enumerate(tensors)
        ]
        return [output for output, _ in pairs], torch.cat([counts for _, counts in pairs])
    *outputs, all_counts = call(GroupedAllgather, name, rows, members, *tensors)
    return outputs, all_counts


def own_rows(
    gathered: Sequence[torch.Tensor], counts: torch.Tensor, rows: Sequence[int], members: Members
) -> Sequence[torch.Tensor]:
    """This rank's rows of what grouped_allgather() has put together; rows: how many they are."""
    if isinstance(members, int):
        take = torch.ops.ringreduce.own_rows
        return [take(tensor, counts[at], rows[at], members) for at, tensor in enumerate(gathered)]
    starts = counts[:, : members.group.rank].sum(1).tolist()
    return [tensor.narrow(0, *where) for tensor, *where in zip(gathered, starts, rows, strict=True)]


class Broadcast(torch.autograd.Function):
    """The gradient of a broadcast is the averaged gradient on the root and zero elsewhere, as in Horovod."""

    @staticmethod
    def forward(tensor: torch.Tensor, root_rank: int, name: str | None, members: Members) -> torch.Tensor:
        process_set = process_set_of(members)
        submit = profiled(process_set.group).broadcast_async
        output = source(tensor).clone()
        root = process_set.position(root_rank, "broadcast")
        wait_or_withdraw(on_stream(submit(operand(output), root, name), output))
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        process_set = process_set_of(inputs[3])
        _, ctx.root_rank, ctx.name, ctx.members = inputs
        ctx.is_root = process_set.group.rank == process_set.position(inputs[1], "broadcast")

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        return broadcast(tangents[0], ctx.root_rank, of_tangent(ctx.name), ctx.members)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        averaged = allreduce(grads[0], None, Average, 1.0, 1.0, ctx.members)
        return averaged if ctx.is_root else torch.zeros_like(averaged), None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None, members: Members) -> torch.Tensor:
    """Broadcast, or its operator."""
    output: torch.Tensor = run("broadcast", Broadcast, tensor, root_rank, name, members)
    return output


class Alltoall(torch.autograd.Function):
    """The gradient of an all-to-all sends every row's gradient back to the rank that it came from.

    The second output, the rows received from each rank, has no gradient. Rows that were sent to nobody get zeros.
    """

    @staticmethod
    def forward(
        tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, members: Members
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensor = source(tensor)
        rows = None if splits is None else rows_for_each(splits.detach().cpu().numpy())
        work = exchange(process_set_of(members).group, tensor, rows, name)
        wait_or_withdraw(work)
        return received(work, tensor), torch.tensor(work.counts, dtype=torch.int64, device="cpu")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensor, ctx.splits, ctx.name, ctx.members = inputs
        ctx.rows = tensor.shape[0]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> Gradients:
        return alltoall(tangents[0], ctx.splits, of_tangent(ctx.name), ctx.members)[0], None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        return sent_back(grads[0], ctx.saved_tensors[0], ctx.rows, ctx.members), None, None, None


def alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, members: Members
) -> tuple[torch.Tensor, torch.Tensor]:
    """Alltoall, or its operator."""
    output, counts = run("alltoall", Alltoall, tensor, splits, name, members)
    return output, counts


def sent_back(grad: torch.Tensor, counts: torch.Tensor, rows: int, members: Members) -> torch.Tensor:
    """The other way: counts[r] rows to rank r each, and zeros below what comes, to `rows` rows in all."""
    if isinstance(members, int):
        in_graph: torch.Tensor = torch.ops.ringreduce.sent_back(grad, counts, rows, members)
        return in_graph
    back, _ = alltoall(grad, counts, None, members)
    return back if len(back) == rows else torch.cat([back, back.new_zeros(rows - len(back), *back.shape[1:])])


class GroupedReducescatter(torch.autograd.Function):
    """The gradient of a reduce-scatter is the gathered gradient, times the number of ranks for Sum, as in Horovod."""

    @staticmethod
    def forward(
        name: str | None, op: int, pre: float, post: float, members: Members, *tensors: torch.Tensor
    ) -> Tensors:
        sources = [source(tensor) for tensor in tensors]
        outputs, works = reducescatters(sources, name, op, pre, post, process_set_of(members))
        wait_or_withdraw(works)
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.name, op, pre, post, ctx.members, *tensors = inputs
        ctx.settings = inputs[1:5]
        ctx.factor = pre * post * (process_set_of(ctx.members).group.size if op == Sum else 1)
        ctx.rows = [tensor.shape[0] for tensor in tensors]

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> Gradients:
        settings = (of_tangent(ctx.name), *ctx.settings)
        return _of_floats(lambda floats: grouped_reducescatter(floats, *settings), tangents[5:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        scaled = [grad if ctx.factor == 1.0 else grad * ctx.factor for grad in grads]
        return None, None, None, None, None, *grouped_allgather(scaled, None, ctx.rows, ctx.members)[0]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor], name: str | None, op: int, pre: float, post: float, members: Members
) -> Sequence[torch.Tensor]:
    """GroupedReducescatter, or its operator."""
    settings = (op, pre, post, members)
    if isinstance(members, int):
        scatter = torch.ops.ringreduce.reducescatter
        return [scatter(tensor, numbered(name, at, len(tensors)), *settings) for at, tensor in enumerate(tensors)]
    outputs: Sequence[torch.Tensor] = call(GroupedReducescatter, name, *settings, *tensors)
    return outputs


def _linear(op: int) -> int:
    if op in (Average, Sum):
        return op
    raise InvalidArgumentError(f"allreduce has a gradient for op Average and Sum, not for {ReduceOp(op).name}")


def _linear_forward(op: int) -> int:
    if op in (Average, Sum):
        return op
    raise no_tangent(f"allreduce with op {ReduceOp(op).name}")


def of_tangent(name: str | None) -> str:
    """One at a time of a name: a collective with autograd waits for its end."""
    return f"{name or 'ringreduce'}.tangent"


def _of_floats(
    collective: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], tangents: Sequence[torch.Tensor | None]
) -> Gradients:
    """The collective of several tangents; a tensor of integers has none."""
    results = iter(collective([tangent for tangent in tangents if tangent is not None]))
    return tuple(None if tangent is None else next(results) for tangent in tangents)
