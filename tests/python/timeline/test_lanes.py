"""Intervals of one lane do not overlap, and there are no more lanes than intervals overlap."""

from __future__ import annotations

import numpy as np
import pytest

from ringreduce.timeline.export.lanes import lanes


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def check(group: np.ndarray, begin: np.ndarray, end: np.ndarray) -> None:
    found = lanes(group, begin, end)
    for one in np.unique(group):
        mine = np.flatnonzero(group == one)
        deepest = max(int(((begin[mine] <= at) & (end[mine] >= at)).sum()) for at in begin[mine])
        assert set(found[mine].tolist()) <= set(range(deepest))
        for lane in np.unique(found[mine]):
            chosen = mine[found[mine] == lane]
            chosen = chosen[np.argsort(begin[chosen], kind="stable")]
            assert (begin[chosen][1:] > end[chosen][:-1]).all()


@pytest.mark.parametrize(("count", "span"), [(1, 1), (20, 3), (60, 100), (400, 300), (400, 100_000)])
def test_lanes_are_free_and_few(count: int, span: int) -> None:
    rng = np.random.default_rng(count + span)
    for longest in (1, 30, span):
        begin = rng.integers(0, span, count)
        check(rng.integers(0, 3, count), begin, begin + rng.integers(0, longest + 1, count))


def test_what_does_not_overlap_is_in_the_first_lane() -> None:
    assert lanes(array(0, 0, 0), array(10, 0, 5), array(11, 4, 9)).tolist() == [0, 0, 0]
    assert lanes(array(0, 1), array(0, 0), array(9, 9)).tolist() == [0, 0]


def test_after_a_pause_the_first_lane_is_used_again() -> None:
    begin, end = array(0, 1, 2, 100, 200), array(10, 11, 12, 110, 210)
    assert lanes(np.zeros(5, np.int64), begin, end).tolist() == [0, 1, 2, 0, 0]


def test_times_that_make_no_sense_are_no_matter() -> None:
    begin = array(-(2**61), 0, 2**61, 5)
    check(array(0, 3, 3, 3), begin, begin + array(5, 2**61, 7, 1))


def test_nothing_has_no_lanes() -> None:
    assert len(lanes(array(), array(), array())) == 0
