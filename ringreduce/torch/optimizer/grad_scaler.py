"""torch.amp.GradScaler with a DistributedOptimizer: gradients are reduced before they are divided and looked at."""

from __future__ import annotations

import functools
from typing import Any

import torch

MARK = "ringreduce_reduces"


def reduce_before_unscaling() -> None:
    """Has every GradScaler call an optimizer's `_reduce_for_scaler()` and `_forget_reduction()`, if it has them.

    The first one begins unscale_(optimizer), which writes down whether the gradients are finite: those of this rank
    alone may not be where others are, and ranks would leave out different steps. The second one ends step(optimizer),
    which may have left out the optimizer's step. torch has no hooks there, so its methods are replaced.
    A scaler with enabled=False does so too: a script clips after unscale_() whether its scaler is enabled or not.
    """
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    if hasattr(scaler.unscale_, MARK):
        return
    plain_unscale, plain_step = scaler.unscale_, scaler.step

    @functools.wraps(plain_unscale)
    def unscale_(self: Any, optimizer: Any) -> Any:
        reduce = getattr(optimizer, "_reduce_for_scaler", None)
        if reduce is not None:
            reduce()
        return plain_unscale(self, optimizer)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain_step(self, optimizer, *args, **kwargs)
        forget = getattr(optimizer, "_forget_reduction", None)
        if forget is not None:
            forget()
        return result

    setattr(unscale_, MARK, True)
    scaler.unscale_, scaler.step = unscale_, step
