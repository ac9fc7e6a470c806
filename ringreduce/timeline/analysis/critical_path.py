"""The critical path across ranks: what the job's last operation ended after, step by step back to the begin.

An operation ends after it began; it began after the operation before it on that rank had ended, or after its last rank
had called; that rank called after it had computed since its last wait; and that wait ended with an operation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ringreduce.timeline.analysis.late import late_ranks
from ringreduce.timeline.analysis.thread_time import RankTime, covered_ns
from ringreduce.timeline.clocks import UNKNOWN_NS
from ringreduce.timeline.job import Job

_Key = TypeVar("_Key")
LACKING_SHARE = 0.05
"""Of the path, in operations that some file has lost: that rank may have called last, and long before the end."""
COMPUTING, MESSAGE = -1, -2
SEGMENT = np.dtype([("begin_ns", "i8"), ("end_ns", "i8"), ("rank", "i4"), ("operation", "i8")])
"""operation: which was under way on the rank; or COMPUTING; or MESSAGE: the rank waited for one, or for an operation
that has no record."""


@dataclass(frozen=True)
class CriticalPath:
    """What the job's time went into.

    Attributes:
        segments: of dtype SEGMENT, ascending; each begins where the one before ends.
        computing_ns: by rank, the largest first.
        communication_ns: by (kind, name) as in job.operations, the largest first.
        others_stood_ns: by rank, how long another rank stood still in waits for operations while this one computed on
            the path, in the mean over the others. It tells a late rank also where its calls come late one by one and
            the others see each of them as communication.
        doubt: why the path cannot be relied on: a sentence's part; "": it can.
        late: the ranks that stand out by others_stood_ns, as in Lateness; none where there is a doubt.
    """

    segments: np.ndarray
    span_ns: int
    computing_ns: dict[int, int]
    communication_ns: dict[tuple[int, int], int]
    message_ns: int
    others_stood_ns: dict[int, int]
    doubt: str
    late: list[int]

    @property
    def all_computing_ns(self) -> int:
        """Of all ranks."""
        return sum(self.computing_ns.values())

    @property
    def all_communication_ns(self) -> int:
        """Of all operations."""
        return sum(self.communication_ns.values())


def critical_path(job: Job, times: Sequence[RankTime]) -> CriticalPath:
    """times: of all ranks that have a file."""
    segments = _Walk(job, times).segments() if len(job.rows) else np.zeros(0, SEGMENT)
    lengths = segments["end_ns"] - segments["begin_ns"]
    computes = segments["operation"] == COMPUTING
    by_rank = np.bincount(segments["rank"][computes], lengths[computes])
    is_operation = segments["operation"] >= 0
    operations = job.operations[segments["operation"][is_operation]]
    keys = operations["kind"].astype(np.int64) * len(job.names) + operations["name"]
    used, inverse = np.unique(keys, return_inverse=True)
    by_key = np.bincount(inverse, lengths[is_operation], len(used))
    stood = _others_stood(segments[computes], times)
    pieces = np.bincount(segments["rank"][computes], minlength=max(stood) + 1).tolist()
    lacks = (job.operations["rows"] < job.operations["expected"])[segments["operation"][is_operation]]
    doubt = _doubt(job, int(lengths[is_operation][lacks].sum()) > LACKING_SHARE * int(lengths.sum()))
    late = [] if doubt else late_ranks({rank: (ns, pieces[rank]) for rank, ns in stood.items()}, job.span_ns)
    kinds_and_names = [divmod(key, len(job.names)) for key in used.tolist()]
    return CriticalPath(
        segments=segments,
        span_ns=int(lengths.sum()),
        computing_ns=_largest_first({rank: int(ns) for rank, ns in enumerate(by_rank) if ns}),
        communication_ns=_largest_first({key: int(ns) for key, ns in zip(kinds_and_names, by_key, strict=True) if ns}),
        message_ns=int(lengths[segments["operation"] == MESSAGE].sum()),
        others_stood_ns=stood,
        doubt=doubt,
        late=late,
    )


def _doubt(job: Job, lacks_rows: bool) -> str:
    """lacks_rows: much of the path is operations of which some rank has no row: of one that has joined, nothing is
    missing."""
    if job.clock_error_ns == UNKNOWN_NS:
        return "the hosts' clocks were never compared"
    if job.are_mismatched:
        return "the ranks' records do not belong together, as the warning says"
    is_whole = len(job.files) == job.files[0].size
    if is_whole and lacks_rows:
        is_whole = all(file.has_ended and not file.damage and not file.dropped for file in job.files)
    return "" if is_whole else "the records of some ranks are missing"


def _others_stood(computing: np.ndarray, times: Sequence[RankTime]) -> dict[int, int]:
    total = np.zeros(max(time.rank for time in times) + 1)
    for time in times:
        others = computing[computing["rank"] != time.rank]
        standing = time.standing[time.standing["operation"] >= 0]
        stood = covered_ns(standing, others["end_ns"]) - covered_ns(standing, others["begin_ns"])
        total += np.bincount(others["rank"], stood, len(total))
    return {time.rank: int(total[time.rank]) // max(len(times) - 1, 1) for time in times}


def _largest_first(sums: dict[_Key, int]) -> dict[_Key, int]:
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


class _Walk:
    """Goes back in time, strictly: whatever the clocks say, each turn ends earlier than it began."""

    def __init__(self, job: Job, times: Sequence[RankTime]) -> None:
        rows, operations = job.rows, job.operations
        self.operation = rows["operation"].tolist()
        self.rank = rows["rank"].tolist()
        self.started = rows["started_ns"].tolist()
        self.ended = rows["ended_ns"]
        self.complete = operations["complete_ns"].tolist()
        self.last_rank = operations["last_rank"].tolist()
        self.begin = {time.rank: time.begin_ns for time in times}
        self.by_end: dict[int, tuple[list[int], list[int]]] = {}
        self.standing: dict[int, tuple[list[int], list[int], list[int]]] = {}
        for time in times:
            began = time.rows[rows["started_ns"][time.rows] != 0]
            order = began[np.argsort(self.ended[began], kind="stable")]
            self.by_end[time.rank] = self.ended[order].tolist(), order.tolist()
            # A wait for an operation that had ended here before has waited for nothing.
            row = time.standing["row"]
            blocks = (row < 0) | (self.ended[row] > time.standing["begin_ns"])
            standing = time.standing[blocks]
            columns = (standing[column].tolist() for column in ("begin_ns", "end_ns", "row"))
            begins, ends, of_rows = columns
            self.standing[time.rank] = begins, ends, of_rows
        self.found: list[tuple[int, int, int, int]] = []

    def segments(self) -> np.ndarray:
        row: int | None = int(np.argmax(self.ended))
        now = int(self.ended[row])
        while row is not None:
            rank, operation = self.rank[row], self.operation[row]
            complete = self.complete[operation]
            before = self._operation_before(row)
            if before is not None and complete < (end := int(self.ended[before])) < now:
                self._add(end, now, rank, operation)
                row, now = before, end
                continue
            has_moved = complete < now
            if has_moved:
                self._add(complete, now, rank, operation)
                now = complete
            row, now = self._computing_before(self.last_rank[operation], now, has_moved)
        return np.array(self.found[::-1], SEGMENT)

    def _operation_before(self, row: int) -> int | None:
        """The one whose end this one's start had to await on its rank, if any had."""
        ends, rows = self.by_end[self.rank[row]]
        at = bisect_right(ends, self.started[row]) - 1
        return rows[at] if at >= 0 else None

    def _computing_before(self, rank: int, now: int, has_moved: bool) -> tuple[int | None, int]:
        """The row whose end let the rank go on, and when; None: there is none, the path begins here."""
        begins, ends, rows = self.standing[rank]
        at = (bisect_right if has_moved else bisect_left)(ends, now) - 1
        while at >= 0:
            self._add(ends[at], now, rank, COMPUTING)
            now = ends[at]
            if rows[at] >= 0:
                return rows[at], now
            self._add(begins[at], now, rank, MESSAGE)
            now = begins[at]
            at -= 1
        self._add(min(self.begin[rank], now), now, rank, COMPUTING)
        return None, now

    def _add(self, begin: int, end: int, rank: int, operation: int) -> None:
        if end > begin:
            self.found.append((begin, end, rank, operation))
