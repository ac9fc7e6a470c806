"""How many bytes an operation has to move: as nccl-tests counts them, so that the rate is that of the slowest link."""

from __future__ import annotations

import numpy as np

from ringreduce.timeline.job import Job

_OF_OTHERS = {"allreduce": 2.0, "allgather": 1.0, "reducescatter": 1.0, "alltoall": 1.0, "gather": 1.0, "scatter": 1.0}
"""busbw / algbw as a multiple of (N-1)/N; it is 1 of all other kinds. As csrc/operations/moved_bytes.h has it."""
_OF_PARTS = frozenset({"allgather", "gather", "scatter"})
"""Kinds of which each rank's bytes are a part of the payload."""


def payload(job: Job) -> np.ndarray:
    """Bytes of each operation: of those of _OF_PARTS all ranks' parts, of others the largest rank's."""
    operations = job.operations
    total = operations["nbytes"].astype(np.float64)
    if not len(operations):
        return total
    parts = np.add.reduceat(job.rows["nbytes"].astype(np.float64), operations["first_row"])
    whole = parts * operations["expected"] / operations["rows"]  # ranks without a record: as the others
    has_parts = np.array([kind in _OF_PARTS for kind in job.kinds])[operations["kind"]]
    return np.where(has_parts, whole, total)


def bus_factor(job: Job) -> np.ndarray:
    """Of each operation, by how much a link's bytes are more than its payload. Bytes over ns are GB/s."""
    ranks = np.maximum(job.operations["expected"], 1)
    factor = np.array([_OF_OTHERS.get(kind, 0.0) for kind in job.kinds])[job.operations["kind"]]
    return np.where(factor == 0, 1.0, factor * (ranks - 1) / ranks)


def bus_bytes(job: Job) -> np.ndarray:
    """For each operation the bytes that a rank sends or receives at least; 0 of a barrier."""
    moved: np.ndarray = payload(job) * bus_factor(job)
    return moved
