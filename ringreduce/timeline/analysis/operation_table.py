"""Operations by kind and name: how many, how long, how fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.job import Job
from ringreduce.timeline.rates import bus_factor, payload
from ringreduce.timeline.record_file import FAILED, GPU_MEMORY, SHARED_BUCKET

LARGE_NBYTES = 1 << 20
"""From here on a bus bandwidth says something of the links."""
MOST_ROWS = 20


@dataclass(frozen=True)
class OperationRow:
    """The operations of one kind and name. Their times are from start to end on each rank.

    Attributes:
        kind, name: as in job.operations.
        operations, nbytes: how many, and their payloads added up (of each operation the largest rank's).
        time_ns: how long they were under way, in the mean over the ranks that took part.
        p50_ns, p99_ns, max_ns: of one operation on one rank; 0: none has run.
        busbw_GBps: the median of the large ones on host memory; None: there is none.
        on_gpu: whether the times are of issuing work to a GPU.
    """

    kind: int
    name: int
    operations: int
    nbytes: int
    time_ns: float
    p50_ns: float
    p99_ns: float
    max_ns: float
    busbw_GBps: float | None
    on_gpu: bool


def operation_table(job: Job, most: int = MOST_ROWS) -> list[OperationRow]:
    """The kinds and names that were longest under way, the longest first."""
    operations, rows = job.operations, job.rows
    used, of_operation = np.unique(
        operations["kind"].astype(np.int64) * len(job.names) + operations["name"], return_inverse=True
    )
    ran = np.flatnonzero((rows["started_ns"] != 0) & (rows["flags"] & FAILED == 0))
    of_row = of_operation[rows["operation"][ran]]
    took = rows["ended_ns"][ran] - rows["started_ns"][ran]
    size = int(rows["rank"].max(initial=0)) + 1
    taking_part = np.bincount(np.unique(of_row * size + rows["rank"][ran]) // size, minlength=len(used))
    time_ns = np.bincount(of_row, took, len(used)) / np.maximum(taking_part, 1)
    counts = np.bincount(of_operation, minlength=len(used))
    nbytes = np.bincount(of_operation, operations["nbytes"], len(used))
    bandwidth = _bandwidth(job, ran)
    table = []
    for key in np.lexsort((-counts, -time_ns))[:most].tolist():
        mine = of_row == key
        times, fast = took[mine], bandwidth[mine]
        fast = fast[fast > 0]
        p50, p99 = np.quantile(times, (0.5, 0.99)) if len(times) else (0.0, 0.0)
        table.append(
            OperationRow(
                kind=int(used[key]) // len(job.names),
                name=int(used[key]) % len(job.names),
                operations=int(counts[key]),
                nbytes=int(nbytes[key]),
                time_ns=float(time_ns[key]),
                p50_ns=float(p50),
                p99_ns=float(p99),
                max_ns=float(times.max(initial=0)),
                busbw_GBps=float(np.median(fast)) if len(fast) else None,
                on_gpu=bool((rows["flags"][ran[mine]] & GPU_MEMORY).any()),
            )
        )
    return table


def _bandwidth(job: Job, ran: np.ndarray) -> np.ndarray:
    """Of each of these rows the bus bandwidth in GB/s, which is bytes/ns; 0 where it says nothing."""
    rows = job.rows[ran]
    total = payload(job)[rows["operation"]]
    nbytes = total.copy()
    began, ended = rows["started_ns"], rows["ended_ns"].copy()
    fused = np.flatnonzero(rows["flags"] & SHARED_BUCKET)
    if len(fused):  # those of one bucket start together; its bytes and its end are theirs
        order = fused[np.lexsort((began[fused], rows["rank"][fused]))]
        new = np.ones(len(order), bool)
        new[1:] = (np.diff(began[order]) != 0) | (np.diff(rows["rank"][order]) != 0)
        bucket = np.cumsum(new) - 1
        nbytes[order] = np.add.reduceat(total[order], np.flatnonzero(new))[bucket]
        ended[order] = np.maximum.reduceat(ended[order], np.flatnonzero(new))[bucket]
    factor = bus_factor(job)[rows["operation"]]
    says = (nbytes >= LARGE_NBYTES) & (ended > began) & (rows["flags"] & GPU_MEMORY == 0)
    found: np.ndarray = np.where(says, nbytes * factor / np.maximum(ended - began, 1), 0.0)
    return found
