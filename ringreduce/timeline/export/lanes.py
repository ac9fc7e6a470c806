"""Lanes: intervals that overlap are drawn one below the other."""

from __future__ import annotations

import numpy as np


def lanes(group: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The lane of each interval, from 0; no two intervals of one group and lane overlap or touch.

    Each run of overlapping intervals uses as many lanes as intervals overlap at most. An interval that finds all of
    them used takes the lane that became free first; which one that is, is found without a loop: with k lanes, the
    i-th interval follows the one that ended (i-k)-th.
    """
    found = np.zeros(len(begin), np.int64)
    begin, end = _apart(group, begin, end)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    starts = np.ones(len(begin), bool)  # of a run
    starts[1:] = begin[1:] > np.maximum.accumulate(end)[:-1]
    alone = starts & np.append(starts[1:], True)
    if alone.all():
        return found
    order, begin, end, starts = (part[~alone] for part in (order, begin, end, starts))
    first = np.flatnonzero(starts)
    run = np.cumsum(starts) - 1
    index = np.arange(len(begin))
    by_end = np.argsort(end, kind="stable")
    open_now = index + 1 - np.searchsorted(end[by_end], begin, side="left")
    width = np.maximum.reduceat(open_now, first)[run]
    follows = np.where(index - first[run] >= width, by_end[index - width], index)
    while not np.array_equal(further := follows[follows], follows):
        follows = further
    found[order] = follows - first[run]
    return found


def _apart(group: np.ndarray, begin: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The intervals with those of each group moved to times of their own."""
    if not len(begin):
        return begin, end
    low, high, groups = int(begin.min()), int(end.max()), int(group.max()) + 1
    if (high - low + 2) * groups >= 2**62:  # times that make no sense: their order is enough
        _, places = np.unique(np.concatenate([begin, end]), return_inverse=True)
        begin, end = places[: len(begin)], places[len(begin) :]
        low, high = 0, int(places.max())
    away = group.astype(np.int64) * (high - low + 2)
    return begin - low + away, end - low + away
