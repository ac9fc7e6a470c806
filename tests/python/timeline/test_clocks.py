"""Hosts' clocks are put on one: the true time is always within the half width, and the half width is small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from timeline_files import RankFile

from ringreduce.timeline.clocks import Clock, clocks_of
from ringreduce.timeline.offsets import Bounds, fit
from ringreduce.timeline.record_file import RankRecords, read

SECOND = 1_000_000_000
ONE_WAY_NS = 20_000  # a message takes at least so long


def ask(
    asker: RankFile,
    answerer: RankFile,
    seconds: float,
    seed: int,
    first: float = 0.0,
    every: float = 0.5,
    one_way_ns: int = ONE_WAY_NS,
) -> None:
    """Clock questions every `every` seconds whose ways there and back take times that differ by chance."""
    rng = np.random.default_rng(seed)
    for sent in np.arange(first, seconds, every) * SECOND:
        there, back = one_way_ns + rng.exponential(100_000, 2)
        asker.question(int(sent), int(sent + there), int(sent + there + back), answerer)


def read_all(files: Sequence[RankFile], folder: Path, seconds: float) -> list[RankRecords]:
    """Written and read again. Each rank has operations from the job's begin to its end."""
    for file in files:
        file.operation(0, 1, 2, 3)
        file.operation(1, int(seconds * SECOND) - 10, None, int(seconds * SECOND))
    return [read(file.write(folder)) for file in files]


def largest_error(file: RankFile, clock: Clock, reference: RankFile, seconds: float) -> int:
    """In ns, over the whole job."""
    true = np.linspace(0, seconds * SECOND, 1001).astype(np.int64).tolist()
    found = clock.to_job(np.array([file.clock(at) for at in true]))
    assert (np.diff(found) > 0).all()
    return int(np.abs(found - np.array([reference.clock(at) for at in true])).max())


def test_ranks_of_one_boot_share_a_clock(tmp_path: Path) -> None:
    files = [RankFile(rank, 3, host=host) for rank, host in enumerate(("a", "a", "b"))]
    clocks = clocks_of(read_all(files, tmp_path, 1))
    assert [clocks[rank].source for rank in range(3)] == ["reference", "same host", "wall clocks"]
    assert [clocks[rank].half_width_ns for rank in range(3)] == [0, 0, -1]
    times = np.array([5, 2**59])
    assert clocks[1].to_job(times).tolist() == times.tolist()


@pytest.mark.parametrize("drift", [0.0, 40e-6, -150e-6])
@pytest.mark.parametrize("seconds", [0.4, 3.0, 60.0])
@pytest.mark.parametrize("direction", ["there", "back", "both"])
def test_questions_bound_the_difference(tmp_path: Path, drift: float, seconds: float, direction: str) -> None:
    here = RankFile(0, 3, "a", clock_ns=7 * SECOND)
    there = RankFile(1, 3, "b", clock_ns=90_000 * SECOND, drift=drift)
    beside = RankFile(2, 3, "b", clock_ns=90_000 * SECOND, drift=drift)  # has asked nothing
    if direction != "back":
        ask(there, here, seconds, seed=1, every=0.1)
    if direction != "there":
        ask(here, there, seconds, seed=2, every=0.1)
    clocks = clocks_of(read_all([here, there, beside], tmp_path, seconds))
    assert [clocks[rank].source for rank in range(3)] == ["reference", "pings", "pings"]
    error = max(largest_error(file, clocks[file.rank], here, seconds) for file in (there, beside))
    assert error <= clocks[1].half_width_ns < 200_000


def test_many_questions_make_it_narrow(tmp_path: Path) -> None:
    here, there = RankFile(0, 2, "a"), RankFile(1, 2, "b", clock_ns=5 * SECOND, drift=30e-6)
    ask(there, here, 60, seed=3, every=0.02)
    ask(here, there, 60, seed=4, every=0.02)
    clocks = clocks_of(read_all([here, there], tmp_path, 60))
    assert largest_error(there, clocks[1], here, 60) <= clocks[1].half_width_ns < 2 * ONE_WAY_NS


def test_what_lies_far_from_all_questions_is_less_certain(tmp_path: Path) -> None:
    here, there = RankFile(0, 2, "a"), RankFile(1, 2, "b", drift=100e-6)
    ask(there, here, 0.1, seed=5)
    clocks = clocks_of(read_all([here, there], tmp_path, 30))
    assert 2_900_000 < largest_error(there, clocks[1], here, 30) <= clocks[1].half_width_ns < 10_000_000


def test_a_drift_that_changes_is_followed(tmp_path: Path) -> None:
    """A clock that is set right over time runs fast, then slow."""
    here = RankFile(0, 2, "a")
    fast, slow = RankFile(1, 2, "b", drift=80e-6), RankFile(1, 2, "b", drift=-80e-6)
    slow.clock_ns = fast.clock(30 * SECOND) - 30 * SECOND + round(30 * SECOND * 80e-6)
    ask(fast, here, 30, seed=6, every=0.05)
    ask(slow, here, 60, seed=7, first=30, every=0.05)
    fast.records += slow.records
    clocks = clocks_of(read_all([here, fast], tmp_path, 30))
    true = np.linspace(0, 60 * SECOND, 601).astype(np.int64).tolist()
    shown = np.array([(fast if at < 30 * SECOND else slow).clock(at) for at in true])
    error = np.abs(clocks[1].to_job(shown) - np.array([here.clock(at) for at in true])).max()
    assert error <= clocks[1].half_width_ns < 1_000_000


def test_a_host_is_reached_over_a_third_one(tmp_path: Path) -> None:
    files = [
        RankFile(rank, 3, "abc"[rank], clock_ns=(rank + 1) * 100 * SECOND, drift=rank * 20e-6) for rank in range(3)
    ]
    ask(files[1], files[0], 10, seed=8, every=0.1, one_way_ns=1_000_000)  # the wider of the two
    ask(files[1], files[2], 10, seed=9, every=0.1)
    clocks = clocks_of(read_all(files, tmp_path, 10))
    assert clocks[2].source == "pings"
    assert clocks[2].half_width_ns > clocks[1].half_width_ns > 1_000_000
    for file in files:
        assert largest_error(file, clocks[file.rank], files[0], 10) <= clocks[file.rank].half_width_ns


def test_wall_clocks_are_used_where_nothing_better_is_known(tmp_path: Path) -> None:
    here = RankFile(0, 2, "a", clock_ns=3 * SECOND)
    there = RankFile(1, 2, "b", clock_ns=50 * SECOND, wall_error_ns=1000)
    clocks = clocks_of(read_all([here, there], tmp_path, 1))
    assert clocks[1].source == "wall clocks"
    assert largest_error(there, clocks[1], here, 1) == 1000


def test_questions_that_contradict_each_other_do_not_turn_time_back() -> None:
    rng = np.random.default_rng(10)
    at = np.sort(rng.integers(0, 100 * SECOND, 500))
    lower = rng.integers(-50 * SECOND, 50 * SECOND, 500)
    offset, error = fit(Bounds(at, lower, lower + 1000), 0, 100 * SECOND)
    times = np.linspace(-SECOND, 101 * SECOND, 10_000).astype(np.int64)
    assert (np.diff(offset.apply(times)) > 0).all()
    assert error > SECOND
