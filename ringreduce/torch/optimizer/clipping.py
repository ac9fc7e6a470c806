"""The norm of gradients, on which ranks agree, and what they are scaled by.

torch sums up most norms in as many parts as it has threads, and all norms of a float16 tensor in channels_last, so that
hosts with other numbers of cores would scale the same gradients by other factors, and their parameters drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def norm_of(grads: Sequence[torch.Tensor], order: float) -> torch.Tensor:
    """The norm of all of them together, as this rank computes it: one float64."""
    norms = [
        torch.linalg.vector_norm(grad, order, dtype=torch.promote_types(grad.dtype, torch.float32))
        for grad in grads
        if grad.numel()  # an empty one has no norm of order infinity
    ]
    together = torch.stack([norm.to(norms[0].device) for norm in norms]) if norms else torch.zeros(1, device="cpu")
    total: torch.Tensor = torch.linalg.vector_norm(together.double(), order).reshape(1)
    return total


def scale_down(
    grads: Sequence[torch.Tensor], norm: torch.Tensor, max_norm: float, norm_type: float, error_if_nonfinite: bool
) -> torch.Tensor:
    """Scales gradients of this norm to max_norm, if it is larger. Returns the norm: float32, or the gradients' float64.

    Raises RuntimeError, as torch does, for a norm that is infinite or NaN, if asked to.
    """
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"The total norm of order {norm_type} of the gradients is non-finite, so they cannot be clipped"
        )
    if all(grad.dtype is not torch.float64 for grad in grads):
        norm = norm.float()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.device))
    return norm
