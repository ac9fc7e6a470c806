"""torch.amp.GradScaler with a DistributedOptimizer: gradients are reduced before they are divided and looked at."""

from __future__ import annotations

import functools
from typing import Any

import torch


def reduce_before_unscaling() -> None:
    """Has every GradScaler's unscale_(optimizer) begin with the optimizer's `_reduce_for_scaler()`, where it has one.

    unscale_() writes down whether the gradients are finite. Of gradients that are this rank's own that differs between
    ranks, which would then leave out different steps. torch has no hook there, so its method is replaced.
    """
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    plain = scaler.unscale_
    if hasattr(plain, "__wrapped__"):  # by this function, in a module that was loaded again
        return

    @functools.wraps(plain)
    def unscale_(self: Any, optimizer: Any) -> Any:
        reduce = getattr(optimizer, "_reduce_for_scaler", None)
        if reduce is not None and self.is_enabled():
            reduce()
        return plain(self, optimizer)

    scaler.unscale_ = unscale_
