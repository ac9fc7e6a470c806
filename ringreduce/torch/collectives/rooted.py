"""Reduce, gather and scatter as autograd sees them. Gradients are the exact transposes.

    reduce   its gradient is RootBroadcast of the root's gradient, and the gradient of that is a reduce with op Sum
    gather   its gradient is Scatterv of the root's gradient, and the gradient of that is a gather
    scatter  its gradient is a gather

So each rank gets the derivative of the sum of all ranks' losses. Horovod has none of these, and its convention for
broadcast and allgather, which average gradients, is not used here. Every forward() returns a token too (tokens.py), and
where users get the token a second one, which they cannot change in place, for what backward() needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.collectives.handles import wait_or_withdraw
from ringreduce.collectives.ops import Average, ReduceOp, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.collectives.autograd import Gradients, of_tangent
from ringreduce.torch.collectives.members import call
from ringreduce.torch.collectives.tokens import gradient_name, join, token_of
from ringreduce.torch.profiling import profiled
from ringreduce.torch.submission import exchange, gather_to_root, received, reduce_to_root, scatter_from_root
from ringreduce.torch.tensors import no_tangent, on_stream, operand, source

Pair = tuple[torch.Tensor, torch.Tensor]
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Reduce(torch.autograd.Function):
    """The gradient of a reduce is the root's gradient, on every rank; for Average, divided by the number of ranks."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, root_rank: int, name: str | None, op: int, pre: float, post: float, members: ProcessSet
    ) -> Triple:
        tensor = source(tensor)
        work, output = reduce_to_root(tensor, root_rank, name, op, pre, post, members)
        wait_or_withdraw(work)
        return tensor.new_empty(0) if output is None else output, token_of(tensor), token_of(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensor, *ctx.settings = inputs
        ctx.shape = tensor.shape
        ctx.gradient = gradient_name(inputs[6], "reduce", inputs[2])
        ctx.save_for_backward(output[2])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> Triple:
        root_rank, name, op, pre, post, members = ctx.settings
        if op not in (Average, Sum):
            raise no_tangent(f"reduce with op {ReduceOp(op).name}")
        result, token = reduce(tangents[0], root_rank, of_tangent(name), op, pre, post, members)
        return result, token, token_of(token)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        root_rank, _, op, pre, post, members = ctx.settings
        if op not in (Average, Sum):
            raise InvalidArgumentError(f"reduce has a gradient for op Average and Sum, not for {ReduceOp(op).name}")
        factor = pre * post / (members.group.size if op == Average else 1)
        grad = join(grads[0] if factor == 1.0 else grads[0] * factor, *ctx.saved_tensors)
        return root_broadcast(grad, ctx.shape, root_rank, ctx.gradient, members), None, None, None, None, None, None


def reduce(
    tensor: torch.Tensor, root_rank: int, name: str | None, op: int, pre: float, post: float, members: ProcessSet
) -> Pair:
    """The result, which is empty on other ranks than the root, and a token."""
    result, token, _ = call(Reduce, tensor, root_rank, name, op, pre, post, members)
    return result, token


class RootBroadcast(torch.autograd.Function):
    """A broadcast to which only the root gives a tensor. Its gradient is the sum of the gradients, at the root."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, shape: Sequence[int], root_rank: int, name: str | None, members: ProcessSet
    ) -> torch.Tensor:
        root = members.position(root_rank, "broadcast")
        group = profiled(members.group)
        output = source(tensor).clone() if group.rank == root else tensor.new_zeros(shape)
        wait_or_withdraw(on_stream(group.broadcast_async(operand(output), root, name), output))
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, *ctx.settings = inputs

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        shape, root_rank, name, members = ctx.settings
        return root_broadcast(tangents[0], shape, root_rank, of_tangent(name), members)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        _, root_rank, name, members = ctx.settings
        return reduce(grads[0], root_rank, f"{name}.gradient", Sum, 1.0, 1.0, members)[0], None, None, None, None


def root_broadcast(
    tensor: torch.Tensor, shape: Sequence[int], root_rank: int, name: str | None, members: ProcessSet
) -> torch.Tensor:
    """The root's tensor, of the shape, on every rank."""
    output: torch.Tensor = call(RootBroadcast, tensor, shape, root_rank, name, members)
    return output


class Gather(torch.autograd.Function):
    """The gradient of a gather deals the rows of the root's gradient out to the ranks that the rows came from.

    The last output, the rows that the root has from each rank, has no gradient.
    """

    @staticmethod
    def forward(
        tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        tensor = source(tensor)
        work, is_root = gather_to_root(tensor, root_rank, name, members)
        wait_or_withdraw(work)
        rows = received(work, tensor) if is_root else tensor.new_empty((0, *tensor.shape[1:]))
        counts = work.counts if is_root else [0] * members.group.size
        return rows, token_of(tensor), token_of(tensor), torch.tensor(counts, dtype=torch.int64, device="cpu")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, *ctx.settings = inputs
        *_, token, ctx.counts = output
        ctx.gradient = gradient_name(inputs[3], "gather", inputs[2])
        ctx.mark_non_differentiable(ctx.counts)
        ctx.save_for_backward(token)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        root_rank, name, members = ctx.settings
        rows, token = gather(tangents[0], root_rank, of_tangent(name), members)
        return rows, token, token_of(token), None

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        root_rank, _, members = ctx.settings
        grad = join(grads[0], *ctx.saved_tensors)
        return scatterv(grad, ctx.counts, root_rank, ctx.gradient, members), None, None, None


def gather(tensor: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet) -> Pair:
    """The ranks' rows, none on other ranks than the root, and a token."""
    rows, token, *_ = call(Gather, tensor, root_rank, name, members)
    return rows, token


class Scatterv(torch.autograd.Function):
    """Deals the root's rows out, counts[r] to rank r: an all-to-all to which the others give no rows.

    Other ranks than the root have no rows, and counts of zero. The gradient is a gather.
    """

    @staticmethod
    def forward(
        rows: torch.Tensor, counts: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet
    ) -> torch.Tensor:
        rows = source(rows)
        work = exchange(members.group, rows, counts.tolist(), name)
        wait_or_withdraw(work)
        return received(work, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, *ctx.settings = inputs

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        counts, root_rank, name, members = ctx.settings
        return scatterv(tangents[0], counts, root_rank, of_tangent(name), members)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        _, root_rank, name, members = ctx.settings
        return gather(grads[0], root_rank, f"{name}.gradient", members)[0], None, None, None, None


def scatterv(
    rows: torch.Tensor, counts: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet
) -> torch.Tensor:
    """This rank's rows of the root's."""
    output: torch.Tensor = call(Scatterv, rows, counts, root_rank, name, members)
    return output


class Scatter(torch.autograd.Function):
    """The gradient of a scatter is a gather of the gradients, at the root.

    The buffer says what comes: its content does not matter, and its gradient is zero.
    """

    @staticmethod
    def forward(
        tensor: torch.Tensor | None, buffer: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet
    ) -> Pair:
        output = torch.empty_like(source(buffer))
        work, whole = scatter_from_root(tensor, output, operand(output), root_rank, name, members)
        wait_or_withdraw(work)
        del whole  # which the operation read
        return output, token_of(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensor, _, *ctx.settings = inputs
        root_rank, _, members = ctx.settings
        is_root = members.group.rank == members.position(root_rank, "scatter")
        ctx.shape = tensor.shape if is_root else None
        ctx.gradient = gradient_name(members, "scatter", inputs[3])
        ctx.save_for_backward(output[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> Pair:
        root_rank, name, members = ctx.settings
        return scatter(tangents[0], tangents[1], root_rank, of_tangent(name), members)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        root_rank, _, members = ctx.settings
        grad = join(grads[0], *ctx.saved_tensors)
        rows, token = gather(grad.unsqueeze(0), root_rank, ctx.gradient, members)
        of_tensor = None if ctx.shape is None else rows.reshape(ctx.shape)
        return of_tensor, token.expand(grad.shape), None, None, None


def scatter(
    tensor: torch.Tensor | None, buffer: torch.Tensor, root_rank: int, name: str | None, members: ProcessSet
) -> Pair:
    """This rank's part of the root's tensor, shaped like the buffer, and a token."""
    output, token = call(Scatter, tensor, buffer, root_rank, name, members)
    return output, token


def root_has(result: torch.Tensor, token: torch.Tensor, root_rank: int, process_set: ProcessSet) -> torch.Tensor:
    """What a rank gets: the root the result, the others the token."""
    return result if process_set.group.rank == process_set.position(root_rank, "the collective") else token
