"""What the buffers hold before each call, and what they must hold after it.

Element p of rank r in call c is p % 16 + r * (p % 3) + c % 5: it depends on rank, position and call, so a result that
was left from another call, or lies in another place, is wrong. Sums of 8 ranks stay below 256: exact in float32, in
float16 and in bfloat16, whatever the order and however often they are rounded on their way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CALLS = 5
"""Calls until the data repeats."""
SHARE = {"none": 1.0, "fp16": 0.5, "bf16": 0.5, "int8": 65 / 256}
"""Codec on the wire: what it leaves of the bytes. int8 has a float32 scale for every 256 elements."""


class Pattern:
    """Inputs and results for one size and one job."""

    def __init__(self, count: int, rank: int, ranks: int) -> None:
        position = np.arange(count, dtype=np.int32)
        base, slope = (position % 16).astype(np.float32), (position % 3).astype(np.float32)
        self.ranks = ranks
        self._mine: Floats = base + np.float32(rank) * slope
        self._sum: Floats = np.float32(ranks) * base + np.float32(ranks * (ranks - 1) // 2) * slope
        self._largest = float(self._sum.max(initial=0)) + ranks * (CALLS - 1)

    def write(self, x: Floats, call: int) -> None:
        """This rank's input of a call."""
        np.add(self._mine, np.float32(call % CALLS), out=x)

    def wrong(self, x: Floats, call: int, wire: str, hosts: int) -> int:
        """How many elements are not the sum, or with a codec that rounds further from it than it may."""
        error = x - self._sum
        error -= np.float32(self.ranks * (call % CALLS))
        return int(np.count_nonzero(~(np.abs(error) <= self.bound(wire, hosts))))  # NaN is wrong

    def bound(self, wire: str, hosts: int) -> float:
        """How far an element may be from its sum.

        int8 stands for at most `largest` in steps of largest / 127 and rounds by half of one each time that a sum is
        put on the wire: by each host on the way round, and once more to hand it out.
        """
        return 0.51 * hosts * self._largest / 127 if wire == "int8" else 0.0
