"""Messages of tensors between two ranks: send and recv, with gradients that travel the other way. Not in Horovod.

Messages from one rank to another arrive in the order sent, and a message whose tag is not the expected one is an error.
Autograd runs backward in the reverse order of the forward calls, on each rank: where the ranks send and receive in the
same order, and call backward() alike, so do their gradients (gradient_numbers.py).
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.collectives.handles import Handle, wait_or_withdraw
from ringreduce.common.gradient_numbers import checked_tag, gradient_tag, tag_of_pass, tangent_tag
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of
from ringreduce.torch.collectives.autograd import Gradients
from ringreduce.torch.collectives.members import call
from ringreduce.torch.collectives.tokens import PER_RANK, join, token_of
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tensors import handle, in_place, is_tracked, on_stream, operand, source
from ringreduce.torch.tracing import ASYNC, untraced


@untraced(PER_RANK)
def send(
    tensor: torch.Tensor, dest: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> torch.Tensor | None:
    """Sends a tensor to another rank, which calls recv(); differentiable.

    The gradient comes back from that rank. So both ranks have to run a backward pass through the message:

        if hvd.rank() == 0:
            loss = hvd.send(first_half(images), dest=1)  # a token, which is zero
        else:
            hidden = torch.empty(64, 512, requires_grad=True)  # the rank that receives says that it has a gradient
            loss = cross_entropy(second_half(hvd.recv(hidden, source=0)), labels)
        loss.backward()

    A rank with a loss of its own calls (loss + token).backward(). Several messages: their gradients travel in the
    reverse order.

    Args:
        tensor: any shape and dtype that allreduce() takes.
        dest: global rank of the receiver.
        tag: the receiver's; from 0 to 2**31 - 1.

    Returns:
        None; where autograd follows the tensor a token, a scalar zero.
    """
    if not is_tracked(tensor):
        send_async(tensor, dest, tag, process_set).wait_or_withdraw()
        return None
    token: torch.Tensor = call(Send, tensor, dest, checked_tag(tag), process_set)[0]
    return token


@untraced(ASYNC)
def send_async(
    tensor: torch.Tensor, dest: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle[None]:
    """send() without waiting, and without a gradient. The tensor must not change until the handle is done."""
    tensor = source(tensor)
    work = _submit_send(tensor, dest, checked_tag(tag), process_set)
    return handle(work, lambda _: None, keep=tensor)


@untraced(PER_RANK)
def recv(tensor: torch.Tensor, source: int, tag: int = 0, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Receives what another rank sends, into a tensor; differentiable: the gradient is sent to that rank.

    Args:
        tensor: the message's dtype and number of elements. Where it requires grad, the result is a new tensor, and the
            gradient of this one is zero; send() has an example. Otherwise it is contiguous and receives the message.
        source: global rank of the sender.
        tag: the sender's; from 0 to 2**31 - 1.

    Returns:
        The tensor; where it requires grad, a new one shaped like it.
    """
    if not is_tracked(tensor):
        return recv_async(tensor, source, tag, process_set).wait_or_withdraw()
    received: torch.Tensor = call(Recv, tensor, source, checked_tag(tag), process_set)[0]
    return received


@untraced(ASYNC)
def recv_async(
    tensor: torch.Tensor, source: int, tag: int = 0, process_set: ProcessSet = global_process_set
) -> Handle[torch.Tensor]:
    """recv() without waiting, and without a gradient. The tensor must be left alone until the handle is done."""
    submit = profiled(group_of(process_set)).recv_async
    work = submit(in_place(tensor), process_set.position(source, "recv"), checked_tag(tag))
    return handle(on_stream(work, tensor), lambda _: tensor)


class Send(torch.autograd.Function):
    """The gradient of a message that was sent is received. Returns two tokens (tokens.py): the user's, and its own."""

    @staticmethod
    def forward(
        tensor: torch.Tensor, dest: int, tag: int, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tensor = source(tensor)
        wait_or_withdraw(_submit_send(tensor, dest, tag, process_set))
        return token_of(tensor), token_of(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensor, *ctx.settings = inputs
        ctx.shape = tensor.shape
        ctx.gradient_tag = gradient_tag(inputs[3], "send", *inputs[1:3])
        ctx.save_for_backward(output[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dest, _, process_set = ctx.settings
        token, other = call(Send, tangents[0], dest, tangent_tag(ctx.gradient_tag), process_set)
        return token, other

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        dest, _, process_set = ctx.settings
        buffer = join(grads[0].new_empty(ctx.shape), *ctx.saved_tensors)
        return call(Recv, buffer, dest, _next_tag(ctx), process_set)[0], None, None, None


class Recv(torch.autograd.Function):
    """The gradient of a message that was received is sent. Returns the message and a token (tokens.py)."""

    @staticmethod
    def forward(
        buffer: torch.Tensor, peer: int, tag: int, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output = torch.empty_like(source(buffer))
        group = profiled(group_of(process_set))
        work = group.recv_async(operand(output), process_set.position(peer, "recv"), tag)
        wait_or_withdraw(on_stream(work, output))
        return output, token_of(output)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, *ctx.settings = inputs
        ctx.gradient_tag = gradient_tag(inputs[3], "recv", *inputs[1:3])
        ctx.save_for_backward(output[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        peer, _, process_set = ctx.settings
        message, token = call(Recv, tangents[0], peer, tangent_tag(ctx.gradient_tag), process_set)
        return message, token

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Gradients:
        peer, _, process_set = ctx.settings
        token = call(Send, join(grads[0], *ctx.saved_tensors), peer, _next_tag(ctx), process_set)[0]
        return token.expand(grads[0].shape), None, None, None


def _next_tag(ctx: Any) -> int:
    """The tag of the gradient in this backward pass, which may be one of several."""
    ctx.passes = getattr(ctx, "passes", -1) + 1
    tag: int = tag_of_pass(ctx.gradient_tag, ctx.passes)
    return tag


def _submit_send(tensor: torch.Tensor, dest: int, tag: int, process_set: ProcessSet) -> Any:
    submit = profiled(group_of(process_set)).send_async
    return on_stream(submit(operand(tensor), process_set.position(dest, "send"), tag), tensor)
