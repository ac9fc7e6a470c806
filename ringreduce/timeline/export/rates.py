"""How many bytes an operation has to move: as nccl-tests counts them, so that the rate is that of the slowest link."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bus_bytes(kinds: Sequence[str], operations: np.ndarray) -> np.ndarray:
    """For each operation the bytes that a rank sends or receives at least; 0 for kinds that move none.

    Divided by the time from the last call to the last end in ns it is the bus bandwidth in GB/s. nbytes is a rank's
    input: an allgather of n ranks moves n - 1 times of it.
    """
    ranks = np.maximum(operations["expected"], 1).astype(np.float64)
    others = (ranks - 1) / ranks
    factors = {
        "allreduce": 2 * others,
        "reducescatter": others,
        "alltoall": others,
        "allgather": ranks - 1,
        "broadcast": np.ones(len(ranks)),
    }
    factor = np.zeros(len(ranks))
    for code, kind in enumerate(kinds):
        if kind in factors:
            chosen = operations["kind"] == code
            factor[chosen] = factors[kind][chosen]
    moved: np.ndarray = factor * operations["nbytes"]
    return moved
