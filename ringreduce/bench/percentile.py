"""The 99th percentile of a few samples, by the nearest rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def p99(ascending: Sequence[float] | NDArray[np.float64]) -> float:
    """The least sample that 99 % of them do not exceed: the largest of fewer than 100. There is one at least.

    >>> p99([1.0, 2.0]), p99(range(1, 102))
    (2.0, 100.0)
    """
    rank = len(ascending) - len(ascending) // 100  # 0.99 of them, rounded up
    return float(ascending[rank - 1])
