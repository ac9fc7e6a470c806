"""What makes a timeline less certain or less complete than it looks, one sentence each, with what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ringreduce.timeline import wording
from ringreduce.timeline.clocks import UNKNOWN_NS, Clock, half_widths
from ringreduce.timeline.matching import Matched
from ringreduce.timeline.ranges import ranks_text
from ringreduce.timeline.record_file import FAILED, RankRecords
from ringreduce.timeline.tables import Tables

SLACK_NS = 1000
"""By how much a rank may end before another calls, beyond what the clocks leave open, before it is a contradiction."""


def collect(
    files: Sequence[RankRecords],
    clocks: dict[int, Clock],
    tables: Tables,
    found: Matched,
    contradicting: int,
    left_out: Collection[int] = (),
) -> list[str]:
    """All warnings of a job, the gravest first.

    Args:
        contradicting: contradictions().
        left_out: ranks whose files are here, and not among these.
    """
    return [
        *_of_files(files, left_out),
        *_of_clocks(clocks),
        *_of_records(tables, found),
        *_of_overlap(contradicting, found),
    ]


def contradictions(clocks: dict[int, Clock], found: Matched) -> int:
    """Operations that ended on a rank before another rank called them: the rows do not belong together.

    A failed one may, and where the difference of two clocks is unknown nothing can be said.
    """
    rows, operations, width = found.rows, found.operations, half_widths(clocks)
    complete = operations["complete_ns"] - width[operations["last_rank"]] - SLACK_NS
    early = rows["ended_ns"] + width[rows["rank"]] < complete[rows["operation"]]
    early &= rows["flags"] & FAILED == 0
    return len(np.unique(rows["operation"][early]))


def _of_files(files: Sequence[RankRecords], left_out: Collection[int]) -> list[str]:
    said = []
    if missing := set(range(files[0].size)) - {file.rank for file in files} - set(left_out):
        said.append(
            f"{ranks_text(missing)} of {files[0].size} left no file here: copy the files of all hosts into one folder."
        )
    said += [f"{file.path} is damaged: {file.damage}; what comes before is used." for file in files if file.damage]
    if unended := [file.rank for file in files if not file.has_ended]:
        said.append(f"{ranks_text(unended)} did not end the timeline: killed, or still running.")
    said += [
        f"rank {file.rank} lost {wording.counted(file.dropped, 'record')}: it made them faster than they were written."
        for file in files
        if file.dropped
    ]
    said += [
        f"{file.path}: {wording.counted(file.unreadable, 'record')} left out that cannot be true."
        for file in files
        if file.unreadable
    ]
    said += [
        f"{file.path}: {wording.counted(file.foreign, 'record')} left out of another job that the process was in."
        for file in files
        if file.foreign
    ]
    return said


def _of_clocks(clocks: dict[int, Clock]) -> list[str]:
    unknown = [rank for rank, clock in clocks.items() if clock.half_width_ns == UNKNOWN_NS]
    if not unknown:
        return []
    never = f"The clock of {ranks_text(unknown)} was never compared with that of rank {min(clocks)}"
    return [f"{never}: the hosts' wall clocks are used, and times between these ranks can be wrong by any amount."]


def _of_records(tables: Tables, found: Matched) -> list[str]:
    said = []
    if tables.undefined:
        said.append(
            f"{wording.counted(tables.undefined, 'record')} without a name that the file defines: shown as '?'."
        )
    if found.repeated:
        said.append(f"{wording.counted(found.repeated, 'record')} left out: a rank is in an operation once.")
    if found.uncounted:
        said.append(
            f"{wording.counted(found.uncounted, 'record')} left out: beyond 65,536 names a rank does not count calls: "
            "of each such name the first is shown."
        )
    if tables.differ:
        said.append(
            f"{ranks_text(tables.differ)} ran another version of ringreduce: kinds and algorithms may be wrong."
        )
    return said


def _of_overlap(count: int, found: Matched) -> list[str]:
    if not count:
        return []
    early = f"{count} of {len(found.operations)} operations ended on a rank before another rank called them"
    return [f"{early}: perhaps the timeline was not started at the same place of the program on all ranks."]
