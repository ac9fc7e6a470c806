"""What the ranks' tensors on the GPU hold, and what an average of them must be, computed without any collective.

Inputs are small integers that depend on rank, position and round, so that averages over 2 and 4 ranks are exact.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 1 << 24  # elements handled at once: no copy of a large tensor is ever whole
MODULUS = 61


def integers(start: int, stop: int, rank: int, turn: int, device: Any) -> torch.Tensor:
    """The integers at these positions of a rank's input, as int64 on the device."""
    positions = torch.arange(start, stop, device=device, dtype=torch.int64)
    return 1 + (positions * 31 + (positions >> 12) * 7 + 17 * rank + 5 * turn) % MODULUS


def fill(tensor: torch.Tensor, rank: int, turn: int) -> None:
    """Writes a rank's input of one round into a flat tensor."""
    for start in range(0, tensor.numel(), BLOCK):
        stop = min(start + BLOCK, tensor.numel())
        tensor[start:stop] = integers(start, stop, rank, turn, tensor.device)


def wrong(tensor: torch.Tensor, ranks: int, turn: int, divisor: int) -> int:
    """How many elements are not the sum of the ranks' inputs divided by the divisor, exactly."""
    bad = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, tensor.numel(), BLOCK):
        stop = min(start + BLOCK, tensor.numel())
        total = sum(integers(start, stop, rank, turn, tensor.device) for rank in range(ranks))
        bad += (tensor[start:stop].double() != total.double() / divisor).sum()
    return int(bad)
