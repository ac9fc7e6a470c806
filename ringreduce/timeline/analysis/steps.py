"""Training steps, where they can be seen: an operation that comes again in even intervals marks them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.analysis.late import Lateness
from ringreduce.timeline.job import Job

FEWEST = 5
SLOWEST = 5
EVEN_RATIO = 2.0
"""Intervals are even if the middle half of them differs by at most this factor,"""
MEAN_RATIO = 1.5
"""and the mean is at most this times the median, but for pauses."""
PAUSE_RATIO = 3.0
PAUSES_SHARE = 0.02
"""An interval of three medians is a pause (an evaluation, a checkpoint, the first step); so many may be."""
SPAN_SHARE = 0.5
"""Steps fill at least so much of the time between the first and the last operation."""
LATE_SHARE = 0.05
"""A step's late rank is named if the others waited so much of the step for it."""


@dataclass(frozen=True)
class Step:
    """One step; late_rank -1: nobody stands out. others_waited_ns: for that rank, in the mean over the other ranks."""

    number: int
    begin_ns: int
    ns: int
    late_rank: int
    others_waited_ns: int


@dataclass(frozen=True)
class Steps:
    """A step lasts from one last call of the marker to the next. Of the operations that come once a step it is the one
    after which the longest pause follows: the last of a step.

    Attributes:
        marker: index of the first such operation in job.operations.
        bounds_ns: its last calls, ascending, one more than there are steps.
        slowest: at most SLOWEST, the slowest first.
    """

    marker: int
    bounds_ns: np.ndarray
    slowest: list[Step]

    @property
    def lengths_ns(self) -> np.ndarray:
        return np.diff(self.bounds_ns)

    def quantile_ns(self, share: float) -> float:
        """share 0.5: the median."""
        return float(np.quantile(self.lengths_ns, share))


def steps_of(job: Job, lateness: Lateness) -> Steps | None:
    """None: there are fewer than FEWEST steps, or the operations show none."""
    order, first, counts = _by_key(job)
    if not len(order):
        return None
    complete = job.operations["complete_ns"]  # ascending
    times = complete[order]
    key = np.repeat(np.arange(len(counts)), counts)
    fills = times[first + counts - 1] - times[first] >= SPAN_SHARE * (complete[-1] - complete[0])
    even = np.flatnonzero((counts > FEWEST) & fills & _are_even(times, key, first, counts))
    if not len(even):
        return None
    alike = _as_often_as_most(even, counts)
    pause = np.bincount(key, np.diff(complete, append=complete[-1])[order], len(counts)) / counts
    marker = alike[np.argmax(pause[alike])]
    marked = order[first[marker] : first[marker] + counts[marker]]
    bounds = complete[marked]
    return Steps(int(marked[0]), bounds, _slowest(job, lateness, bounds))


def _by_key(job: Job) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Operations grouped by what they do, in the order of time: their order, each group's first place, its count."""
    operations = job.operations
    nbytes = np.where(operations["name"] == 0, operations["nbytes"], 0)
    columns = (nbytes, operations["name"], operations["kind"], operations["group"])
    order = np.lexsort(columns)
    changes = np.zeros(len(order), bool)
    changes[:1] = True
    for column in columns:
        changes[1:] |= column[order[1:]] != column[order[:-1]]
    first = np.flatnonzero(changes)
    return order, first, np.diff(first, append=len(order))


def _are_even(times: np.ndarray, key: np.ndarray, first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """For each group, whether the intervals of its times are."""
    inner = np.ones(len(times), bool)
    inner[first + counts - 1] = False
    of_interval, interval = key[inner], np.diff(times, append=0)[inner]
    number = np.maximum(counts - 1, 1)
    begin = np.cumsum(counts - 1) - (counts - 1)
    by_length = interval[np.lexsort((interval, of_interval))] if len(interval) else np.zeros(1, np.int64)
    p25, p50, p75 = (
        np.maximum(by_length[np.minimum(begin + (number - 1) * quarter // 4, len(by_length) - 1)], 1)
        for quarter in (1, 2, 3)
    )
    mean = np.bincount(of_interval, interval, len(counts)) / number
    pauses = np.bincount(of_interval, interval > PAUSE_RATIO * p50[of_interval], len(counts))
    few = (mean <= MEAN_RATIO * p50) | (pauses <= np.maximum(1, PAUSES_SHARE * number))
    found: np.ndarray = few & (p75 <= EVEN_RATIO * p25) & (p50 > 1)
    return found


def _as_often_as_most(even: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Those of the groups `even` that come as often as most of their operations, or once less: the last step's part."""
    by_count = np.bincount(counts[even], counts[even])
    near = by_count.copy()
    near[1:] += by_count[:-1]
    usual = int(np.argmax(near))
    found: np.ndarray = even[(counts[even] == usual) | (counts[even] == usual - 1)]
    return found


def _slowest(job: Job, lateness: Lateness, bounds: np.ndarray) -> list[Step]:
    operations, others = job.operations, max(len(lateness.ranks) - 1, 1)
    step_of = np.searchsorted(bounds, operations["complete_ns"], "left") - 1
    lengths = np.diff(bounds)
    found = []
    for number in np.argsort(-lengths, kind="stable")[:SLOWEST].tolist():
        within = np.flatnonzero((step_of == number) & lateness.names_last)
        waited = np.bincount(operations["last_rank"][within], lateness.waited_ns[within], 1) / others
        late = int(np.argmax(waited))
        is_late = waited[late] >= LATE_SHARE * lengths[number]
        found.append(
            Step(
                number=number,
                begin_ns=int(bounds[number]),
                ns=int(lengths[number]),
                late_rank=late if is_late else -1,
                others_waited_ns=int(waited[late]) if is_late else 0,
            )
        )
    return found
