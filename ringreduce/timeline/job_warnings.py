"""What makes a timeline less certain or less complete than it looks, one sentence each, with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ringreduce.timeline.clocks import UNKNOWN_NS, Clock
from ringreduce.timeline.matching import Matched
from ringreduce.timeline.ranges import ranges
from ringreduce.timeline.record_file import FAILED, RankRecords
from ringreduce.timeline.tables import Tables

SLACK_NS = 1000
"""By how much a rank may end before another calls, beyond what the clocks leave open, before it is a contradiction."""
MISMATCHED_SHARE = 0.05
"""Of the operations, from which on their rows are taken not to belong together."""


def collect(files: Sequence[RankRecords], clocks: dict[int, Clock], tables: Tables, found: Matched) -> list[str]:
    """All warnings of a job, the gravest first."""
    return [
        *_of_files(files),
        *_of_clocks(clocks),
        *_of_records(tables, found),
        *_of_overlap(clocks, found),
    ]


def are_mismatched(clocks: dict[int, Clock], rows: np.ndarray, operations: np.ndarray) -> bool:
    """Whether so many operations contradict themselves that nothing follows from who was last."""
    return contradictions(clocks, rows, operations) > MISMATCHED_SHARE * len(operations)


def contradictions(clocks: dict[int, Clock], rows: np.ndarray, operations: np.ndarray) -> int:
    """Operations that ended on a rank before another rank called them: the rows do not belong together.

    A failed one may, and where the difference of two clocks is unknown nothing can be said.
    """
    if not len(operations):
        return 0
    unknown = 2**59
    width = np.full(max(clocks, default=0) + 1, unknown)
    for rank, clock in clocks.items():
        width[rank] = unknown if clock.half_width_ns == UNKNOWN_NS else clock.half_width_ns
    complete = operations["complete_ns"] - width[operations["last_rank"]] - SLACK_NS
    early = rows["ended_ns"] + width[rows["rank"]] < complete[rows["operation"]]
    early &= rows["flags"] & FAILED == 0
    return len(np.unique(rows["operation"][early]))


def _of_files(files: Sequence[RankRecords]) -> list[str]:
    said = []
    if missing := set(range(files[0].size)) - {file.rank for file in files}:
        said.append(
            f"{_ranks(missing)} of {files[0].size} left no file here: copy the files of all hosts into one folder."
        )
    said += [f"{file.path} is damaged: {file.damage}; what comes before is used." for file in files if file.damage]
    if unended := [file.rank for file in files if not file.has_ended]:
        said.append(f"{_ranks(unended)} did not end the timeline: killed, or still running.")
    said += [
        f"rank {file.rank} lost {_records(file.dropped)}: it made them faster than they were written."
        for file in files
        if file.dropped
    ]
    said += [
        f"{file.path}: {_records(file.unreadable)} left out that cannot be true." for file in files if file.unreadable
    ]
    return said


def _of_clocks(clocks: dict[int, Clock]) -> list[str]:
    unknown = [rank for rank, clock in clocks.items() if clock.half_width_ns == UNKNOWN_NS]
    if not unknown:
        return []
    never = f"The clock of {_ranks(unknown)} was never compared with that of rank {min(clocks)}"
    return [f"{never}: the hosts' wall clocks are used, and times between these ranks can be wrong by any amount."]


def _of_records(tables: Tables, found: Matched) -> list[str]:
    said = []
    if tables.undefined:
        said.append(f"{_records(tables.undefined)} without a name that the file defines: shown as '?'.")
    if found.repeated:
        said.append(f"{_records(found.repeated)} left out: a rank is in an operation once.")
    if tables.differ:
        said.append(f"{_ranks(tables.differ)} ran another version of ringreduce: kinds and algorithms may be wrong.")
    return said


def _of_overlap(clocks: dict[int, Clock], found: Matched) -> list[str]:
    count = contradictions(clocks, found.rows, found.operations)
    if not count:
        return []
    early = f"{count} of {len(found.operations)} operations ended on a rank before another rank called them"
    return [f"{early}: perhaps the timeline was not started at the same place of the program on all ranks."]


def _ranks(ranks: Iterable[int]) -> str:
    every = list(ranks)
    return f"rank{'' if len(every) == 1 else 's'} {ranges(every)}"


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
