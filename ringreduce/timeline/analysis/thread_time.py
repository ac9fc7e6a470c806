"""What each rank's main thread did: it computed, waited for other ranks, or stood still for bytes under way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import ASYNCHRONOUS, FAILED, GPU_MEMORY, QUICK

STANDING = np.dtype([("begin_ns", "i8"), ("complete_ns", "i8"), ("end_ns", "i8"), ("operation", "i8"), ("row", "i8")])
"""The thread stands still, up to complete_ns for other ranks' calls. row: this rank's in job.rows, -1: it has none.
operation -1: for a message, or for an operation that has no record; complete_ns is begin_ns then. -2: in join(), for
ranks that have more data; complete_ns is end_ns."""
JOIN = -2
JOIN_KIND = "join"
MAIN_THREAD = 0
INTERVALS = np.dtype([("begin_ns", "i8"), ("end_ns", "i8")])
"""Disjoint, ascending."""


@dataclass(frozen=True)
class RankTime:
    """The time of one rank's main thread: four parts that add up to span_ns.

    Attributes:
        rows: which of job.rows are this rank's, ascending.
        standing: of dtype STANDING, disjoint, ascending.
        communication: of dtype INTERVALS: when operations on host memory were under way on this rank.
        hidden_ns: the part of `communication` in which the thread computed.
    """

    rank: int
    host: str
    rows: np.ndarray
    standing: np.ndarray
    communication: np.ndarray
    nbytes: int
    begin_ns: int
    span_ns: int
    computing_ns: int
    waiting_ns: int
    exposed_ns: int
    message_ns: int
    communication_ns: int
    hidden_ns: int

    @property
    def overlap(self) -> float:
        """hidden_ns / communication_ns; 0 without communication."""
        return self.hidden_ns / self.communication_ns if self.communication_ns else 0.0


def times_of(job: Job) -> list[RankTime]:
    """Of each rank that has a file, by rank."""
    ranks = np.array([file.rank for file in job.files])
    order = np.argsort(job.rows["rank"].astype(np.int16), kind="stable")
    edges = np.searchsorted(job.rows["rank"][order], ranks), np.searchsorted(job.rows["rank"][order], ranks, "right")
    waits, messages = _of_each(job.waits, ranks), _of_each(job.messages, ranks)
    return [
        _time_of(job, index, np.sort(order[edges[0][index] : edges[1][index]]), waits[index], messages[index])
        for index in range(len(ranks))
    ]


def covered_ns(intervals: np.ndarray, until_ns: np.ndarray) -> np.ndarray:
    """How much of the intervals lies before each of these times."""
    if not len(intervals):
        return np.zeros(len(until_ns), np.int64)
    lengths = intervals["end_ns"] - intervals["begin_ns"]
    before = np.cumsum(lengths) - lengths
    at = np.maximum(np.searchsorted(intervals["begin_ns"], until_ns, "right") - 1, 0)
    found: np.ndarray = before[at] + np.clip(until_ns - intervals["begin_ns"][at], 0, lengths[at])
    return found


def union(begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """The times that lie in any of these intervals, as INTERVALS."""
    order = np.argsort(begin_ns, kind="stable")
    found = np.empty(len(order), INTERVALS)
    found["begin_ns"], found["end_ns"] = begin_ns[order], end_ns[order]
    _cut(found)
    return found[found["end_ns"] > found["begin_ns"]]


def _cut(found: np.ndarray) -> None:
    """Begins each interval where all earlier ones have ended. Sorted by begin_ns."""
    reached = np.maximum.accumulate(found["end_ns"])
    found["begin_ns"][1:] = np.maximum(found["begin_ns"][1:], reached[:-1])


def _of_each(records: np.ndarray, ranks: np.ndarray) -> list[np.ndarray]:
    """The part of each rank, of records that are sorted by rank."""
    first, after = np.searchsorted(records["rank"], ranks), np.searchsorted(records["rank"], ranks, "right")
    return [records[begin:end] for begin, end in zip(first, after, strict=True)]


def _time_of(job: Job, index: int, mine: np.ndarray, waits: np.ndarray, messages: np.ndarray) -> RankTime:
    rows = job.rows[mine]
    begins = np.concatenate([rows["called_ns"], waits["begin_ns"], messages["called_ns"]])
    ends = np.concatenate([rows["ended_ns"], waits["end_ns"], messages["ended_ns"]])
    begin_ns = int(begins.min()) if len(begins) else 0
    span_ns = int(ends.max()) - begin_ns if len(ends) else 0
    standing = _standing(job, mine, rows, waits)
    stood = standing["end_ns"] - standing["begin_ns"]
    waited = standing["complete_ns"] - standing["begin_ns"]
    for_message = standing["operation"] == -1
    seen = (rows["started_ns"] != 0) & (rows["flags"] & (GPU_MEMORY | FAILED) == 0)
    communication = union(rows["started_ns"][seen], rows["ended_ns"][seen])
    still = covered_ns(communication, standing["end_ns"]) - covered_ns(communication, standing["begin_ns"])
    communication_ns = int((communication["end_ns"] - communication["begin_ns"]).sum())
    return RankTime(
        rank=job.files[index].rank,
        host=job.files[index].host,
        rows=mine,
        standing=standing,
        communication=communication,
        nbytes=int(rows["nbytes"].sum()) + int(messages["nbytes"].sum()),
        begin_ns=begin_ns,
        span_ns=span_ns,
        computing_ns=span_ns - int(stood.sum()),
        waiting_ns=int(waited.sum()),
        exposed_ns=int((stood - waited)[~for_message].sum()),
        message_ns=int(stood[for_message].sum()),
        communication_ns=communication_ns,
        hidden_ns=communication_ns - int(still.sum()),
    )


def _is_join(job: Job, waits: np.ndarray) -> np.ndarray:
    code = job.kinds.index(JOIN_KIND) if JOIN_KIND in job.kinds else -1
    found: np.ndarray = waits["kind"] == code
    return found


def _standing(job: Job, mine: np.ndarray, rows: np.ndarray, waits: np.ndarray) -> np.ndarray:
    # A quick call whose last rank came within microseconds has no record of its wait.
    is_call = (rows["flags"] & (QUICK | ASYNCHRONOUS) == QUICK) & (rows["thread"] == MAIN_THREAD)
    calls = rows[is_call]
    # DDP and TensorFlow wait in the main thread by means of their own. What is recorded is the wait of another thread,
    # from the call on: the main thread computes first, and then stands still, without CPU time, until the end.
    computed = np.where(waits["thread"] == MAIN_THREAD, 0, waits["main_cpu_ns"])
    begin_ns = np.concatenate([calls["called_ns"], waits["begin_ns"] + computed])
    order = np.argsort(begin_ns, kind="stable")
    found = np.empty(len(order), STANDING)
    found["begin_ns"] = begin_ns[order]
    found["end_ns"] = np.concatenate([calls["ended_ns"], waits["end_ns"]])[order]
    about = np.where(_is_join(job, waits), JOIN, waits["operation"])
    found["operation"] = np.concatenate([calls["operation"], about])[order]
    _cut(found)
    found = found[found["end_ns"] > found["begin_ns"]]
    known = found["operation"] >= 0
    found["complete_ns"] = np.where(found["operation"] == JOIN, found["end_ns"], found["begin_ns"])
    complete = job.operations["complete_ns"][found["operation"][known]]
    found["complete_ns"][known] = np.clip(complete, found["begin_ns"][known], found["end_ns"][known])
    found["row"] = -1
    if len(mine):
        at = np.minimum(np.searchsorted(rows["operation"], found["operation"]), len(mine) - 1)
        has_row = rows["operation"][at] == found["operation"]
        found["row"][has_row] = mine[at[has_row]]
        # Some rank's record is missing. It may have called last: until the start here, or the end without one.
        lacks = known & has_row
        lacks[known] &= (job.operations["rows"] < job.operations["expected"])[found["operation"][known]]
        started = rows["started_ns"][at]
        complete = np.where(started == 0, found["end_ns"], np.clip(started, found["begin_ns"], found["end_ns"]))
        found["complete_ns"][lacks] = complete[lacks]
    return found
