"""Tokens: what a rank without a result has of an operation, so that autograd reaches the operation there too.

A gradient has to be sent and received: each rank of gather, scatter, reduce, send and recv takes part in the backward
pass. Autograd runs the backward of an operation only where the loss depends on an output of the operation. The root of
a gather has the rows; the other ranks get a token, a scalar zero, and add the token to what they call backward() on.
mpi4jax (Häfner and Vicentini, 2021) calls a value for a similar end a token, mpi4torch calls it a dummy.

torch.autograd.grad(loss, inputs) runs what leads to the inputs, and nothing else: a rank that receives into a tensor
that requires grad names this tensor among the inputs, or calls backward().

Under create_graph=True the gradient's own operation is in the graph on all ranks or on none: join() makes the operation
depend on the token, also where a rank's incoming gradient is a constant.
"""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.common.gradient_numbers import number_of
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.collectives.members import call

PER_RANK = "what it returns differs between the ranks, and so would their graphs"
"""Why torch.compile breaks the graph at these operations."""


KEPT_NAMES = 1024
"""So many gradients of one kind can wait under different names: then names are used again."""


def gradient_name(process_set: ProcessSet, operation: str, name: str | None) -> str:
    """What the gradient of this operation is called (gradient_numbers.py)."""
    number = number_of(process_set, operation, name) % KEPT_NAMES
    return f"{name or f'ringreduce.{operation}'}.{number}.gradient"


def token_of(tensor: torch.Tensor) -> torch.Tensor:
    """A token of an operation on the tensor, of its dtype."""
    return tensor.new_zeros(())


class Join(torch.autograd.Function):
    """The tensor, which then depends on the token, too."""

    @staticmethod
    def forward(tensor: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Needs nothing."""

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        return tangents[0].view_as(tangents[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grads[0], token_of(grads[0])


def join(tensor: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """The tensor; under create_graph=True, when backward() runs with gradients enabled, through Join."""
    joined: torch.Tensor = call(Join, tensor, token) if torch.is_grad_enabled() else tensor
    return joined
