"""What a picture of a stretch of time shows of each rank, few enough slices for a page: short ones become cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.analysis.thread_time import JOIN, RankTime
from ringreduce.timeline.job import Job

FINEST = 8192
"""Cells across a picture, which halve until there are few enough slices."""
COARSEST = 16
WAITING, EXPOSED, MESSAGE, MOVING = "waiting", "exposed", "message", "moving"
SLICE = np.dtype([("begin_ns", "i8"), ("end_ns", "i8"), ("operation", "i8"), ("row", "i8"), ("count", "i8")])
"""count: how many slices it stands for; end_ns - begin_ns of several is what they last together, within one cell."""


@dataclass(frozen=True)
class Window:
    """A stretch of time, and what it is."""

    title: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True)
class Lane:
    """Slices of one rank and one sort, of dtype SLICE. rank: index into Analysis.times."""

    rank: int
    sort: str
    slices: np.ndarray


def lanes(found: Analysis, window: Window, most: int) -> list[Lane]:
    """All ranks' slices in the window; at most `most`, or a few times COARSEST for each rank."""
    whole = [lane for index, time in enumerate(found.times) for lane in _of_rank(found.job, index, time, window)]
    cells = FINEST
    while True:
        coarse = [Lane(lane.rank, lane.sort, merged(lane.slices, window, cells)) for lane in whole]
        if cells <= COARSEST or sum(len(lane.slices) for lane in coarse) <= most:
            return coarse
        cells //= 2


def merged(slices: np.ndarray, window: Window, cells: int) -> np.ndarray:
    """Slices shorter than a cell become one for each cell that has any; of one alone nothing changes."""
    cell_ns = max((window.end_ns - window.begin_ns) / cells, 1.0)
    lengths = slices["end_ns"] - slices["begin_ns"]
    is_short = lengths < cell_ns
    short, long = slices[is_short], slices[~is_short]
    cell = ((short["begin_ns"] - window.begin_ns) / cell_ns).astype(np.int64)
    first = np.flatnonzero(np.diff(cell, prepend=-1))
    groups = short[first]
    if len(first):
        together = np.add.reduceat(short["end_ns"] - short["begin_ns"], first)
        groups["count"] = np.add.reduceat(short["count"], first)
        groups["end_ns"] = groups["begin_ns"] + together
    found = np.concatenate([long, groups])
    return found[np.argsort(found["begin_ns"], kind="stable")]


def _of_rank(job: Job, index: int, time: RankTime, window: Window) -> Sequence[Lane]:
    first = np.searchsorted(time.standing["end_ns"], window.begin_ns, "right")
    standing = time.standing[first : np.searchsorted(time.standing["begin_ns"], window.end_ns)]
    about = standing["operation"]
    waits = (about >= 0) | (about == JOIN)
    begin, complete, end = standing["begin_ns"], standing["complete_ns"], standing["end_ns"]
    rows = job.rows[time.rows]
    moves = (rows["started_ns"] != 0) & (rows["ended_ns"] > window.begin_ns) & (rows["started_ns"] < window.end_ns)
    mine, rows = time.rows[moves], rows[moves]
    sorts = (
        (WAITING, begin[waits], complete[waits], about[waits], standing["row"][waits]),
        (EXPOSED, complete[waits], end[waits], about[waits], standing["row"][waits]),
        (MESSAGE, begin[~waits], end[~waits], about[~waits], standing["row"][~waits]),
        (MOVING, rows["started_ns"], rows["ended_ns"], rows["operation"], mine),
    )
    return [Lane(index, sort, _slices(window, *columns)) for sort, *columns in sorts]


def _slices(window: Window, begin: np.ndarray, end: np.ndarray, operation: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Cut to the window; those of the same time, a bucket's operations, are one."""
    found = np.empty(len(begin), SLICE)
    found["begin_ns"], found["end_ns"] = np.maximum(begin, window.begin_ns), np.minimum(end, window.end_ns)
    found["operation"], found["row"], found["count"] = operation, row, 1
    found = found[found["end_ns"] > found["begin_ns"]]
    found = found[np.lexsort((found["end_ns"], found["begin_ns"]))]
    new = np.ones(len(found), bool)
    new[1:] = (np.diff(found["begin_ns"]) != 0) | (np.diff(found["end_ns"]) != 0)
    first = np.flatnonzero(new)
    counts = np.diff(first, append=len(found))
    found = found[first]
    found["count"] = counts
    return found
