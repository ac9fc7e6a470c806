"""Which rank the others waited for, as far as the hosts' clocks can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.analysis.thread_time import RankTime, covered_ns
from ringreduce.timeline.clocks import half_widths
from ringreduce.timeline.job import Job

LATE_SHARE = 0.1
"""A rank is late if the others wait for it so much of the span,"""
LATE_OPERATIONS = 4
"""in so many operations or more,"""
LATE_RATIO = 3.0
"""and so many times as long as for any rank that is not late. Most ranks cannot be late."""
PAUSE_SHARE = 0.4
"""A rank whose longest single delay is so much of all its delays has paused."""


@dataclass(frozen=True)
class RankLateness:
    """How late one rank was.

    Attributes:
        last_in, judged: it was the last to call in so many of its judged operations.
        others_waited_ns: how long another rank waited for it, in the mean over all other ranks of the job.
        waited_in: in how many operations somebody did.
        longest_ns, longest_operation: the most of others_waited_ns in one operation; -1: there is none.
    """

    rank: int
    last_in: int
    judged: int
    others_waited_ns: int
    waited_in: int
    longest_ns: int
    longest_operation: int

    @property
    def is_pause(self) -> bool:
        """Whether most of it is one operation."""
        return self.longest_ns > PAUSE_SHARE * self.others_waited_ns


@dataclass(frozen=True)
class Lateness:
    """Of all ranks and all operations.

    Attributes:
        ranks: by rank.
        names_last: for each operation, whether it is sure which rank called last: all ranks' records are there, and
            that rank came later than any other by more than the error of their clocks.
        waited_ns: for each operation, how long main threads of other ranks waited for the last one, which stood in no
            wait itself meanwhile, added up.
        nameless_ns: the waits in operations that name nobody, in the mean over the ranks.
        late: the ranks that stand out, the latest first.
    """

    ranks: list[RankLateness]
    names_last: np.ndarray
    waited_ns: np.ndarray
    nameless_ns: int
    late: list[int]


def lateness_of(job: Job, times: Sequence[RankTime]) -> Lateness:
    """times: of all ranks that have a file."""
    operations, size = job.operations, max(time.rank for time in times) + 1
    names_last = _names_last(job, size)
    waited, own = _waited(operations, times)
    charged = np.where(names_last, own, 0)
    last = operations["last_rank"]
    totals = np.bincount(last, charged, size)
    last_in = np.bincount(last, names_last, size)
    waited_in = np.bincount(last, charged > 0, size)
    judged = np.bincount(job.rows["rank"], names_last[job.rows["operation"]], size)
    others = max(len(times) - 1, 1)
    longest = _longest(charged, last, size)
    ranks = [
        RankLateness(
            rank=rank,
            last_in=int(last_in[rank]),
            judged=int(judged[rank]),
            others_waited_ns=int(totals[rank]) // others,
            waited_in=int(waited_in[rank]),
            longest_ns=int(charged[longest[rank]]) // others if longest[rank] >= 0 else 0,
            longest_operation=int(longest[rank]),
        )
        for rank in (time.rank for time in times)
    ]
    nameless_ns = int(waited[~names_last].sum()) // len(times)
    late = late_ranks({rank.rank: (rank.others_waited_ns, rank.waited_in) for rank in ranks}, job.span_ns)
    return Lateness(ranks, names_last, own, nameless_ns, late)


def _waited(operations: np.ndarray, times: Sequence[RankTime]) -> tuple[np.ndarray, np.ndarray]:
    """How long the ranks waited for each operation's last call, and the part in which its rank stood in no wait itself.

    A rank that was kept from its call, by a message or by another group's operation, is not the one that was late.
    """
    about = np.concatenate([time.standing[time.standing["operation"] >= 0] for time in times])
    waited, own = np.zeros((2, len(operations)), np.int64)
    last = operations["last_rank"][about["operation"]]
    for time in times:
        mine = about[last == time.rank]
        length = mine["complete_ns"] - mine["begin_ns"]
        kept = covered_ns(time.standing, mine["complete_ns"]) - covered_ns(time.standing, mine["begin_ns"])
        np.add.at(waited, mine["operation"], length)
        np.add.at(own, mine["operation"], np.maximum(length - kept, 0))
    return waited, own


def late_ranks(waited: Mapping[int, tuple[int, int]], span_ns: int) -> list[int]:
    """Those that stand out, the latest first; none where more than half of the ranks are late alike.

    waited: for each rank, how long the others waited for it, in the mean, and how many times.
    """
    ranks = sorted(waited, key=lambda rank: -waited[rank][0])
    for count in range(len(ranks) // 2, 0, -1):
        late, least_ns, rest_ns = ranks[:count], waited[ranks[count - 1]][0], waited[ranks[count]][0]
        if least_ns < max(LATE_SHARE * span_ns, 1) or least_ns < LATE_RATIO * rest_ns:
            continue
        if all(waited[rank][1] >= LATE_OPERATIONS for rank in late):
            return late
    return []


def _names_last(job: Job, size: int) -> np.ndarray:
    width, host = half_widths(job.clocks), np.zeros(size, np.int64)
    hosts: dict[str, int] = {}
    for file in job.files:
        host[file.rank] = hosts.setdefault(file.boot, len(hosts))
    operations, rows = job.operations, job.rows
    if not len(operations) or job.are_mismatched:
        return np.zeros(len(operations), bool)
    rank, last = rows["rank"], operations["last_rank"][rows["operation"]]
    open_ns = np.where(host[rank] == host[last], 0, width[rank] + width[last])
    lead_ns = operations["complete_ns"][rows["operation"]] - rows["called_ns"]
    leads = np.logical_and.reduceat((lead_ns > open_ns) | (rank == last), operations["first_row"])
    found: np.ndarray = leads & (operations["rows"] == operations["expected"]) & (operations["expected"] > 1)
    return found


def _longest(charged: np.ndarray, last: np.ndarray, size: int) -> np.ndarray:
    """For each rank the operation that has the most; -1: none has any."""
    found = np.full(size, -1)
    order = np.argsort(charged, kind="stable")
    order = order[charged[order] > 0]
    found[last[order]] = order  # of several for one rank, the last stays
    return found
