"""The optimizers of `bench train`: what a step costs after the gradients are there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

OPTIMIZERS = {"sgd": 1.0, "momentum": 0.2, "adam": 0.02}
"""Name: factor on the model's learning rate, so that ten steps lower the loss and do not throw it about."""


def make(name: str, parameters: Iterable[nn.Parameter], lr: float) -> Optimizer:
    """The optimizer of that name; momentum is 0.9, the rest torch's defaults."""
    import torch

    lr *= OPTIMIZERS[name]
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9 if name == "momentum" else 0.0)
