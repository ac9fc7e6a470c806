"""Steps of a training that a timeline shows, and the slowest of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from timeline_files import US, call, found_in, pair, stepping

from ringreduce.timeline import report
from ringreduce.timeline.analysis.conclusions import conclusions


def test_steps_are_seen_and_the_slowest_say_who_was_late(tmp_path: Path) -> None:
    lengths = [1000] * 30
    lengths[12], lengths[20] = 1900, 1500
    found = found_in(stepping(lengths), tmp_path)
    steps = found.steps
    assert steps is not None
    assert found.job.names[found.job.operations[steps.marker]["name"]] == "c"  # after which the long pause comes
    assert len(steps.lengths_ns) == 29
    assert steps.quantile_ns(0.5) == 1000 * US
    assert [(step.number, step.ns, step.late_rank) for step in steps.slowest[:3]] == [
        (11, 1900 * US, 1),
        (19, 1500 * US, 1),
        (0, 1000 * US, -1),
    ]
    assert any("the slowest took 1.90 ms, where rank 1 was late" in sentence for sentence in conclusions(found))


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ([1000] * 6, 5),
        ([1000] * 5, None),  # four intervals
        ([1000] * 20 + [40_000] + [1000] * 20, 40),  # a pause
        ([1000, 1000, 9000] * 10, None),  # three in a burst
        ([1000] * 9 + [30_000] + [1000] * 9 + [30_000], None),
    ],
)
def test_steps_are_even_but_for_pauses(tmp_path: Path, lengths: list[int], steps: int | None) -> None:
    found = found_in(stepping(lengths), tmp_path).steps
    assert (None if found is None else len(found.lengths_ns)) == steps


def test_the_call_that_ends_a_step_belongs_to_it(tmp_path: Path) -> None:
    """One operation a step: step 5 ends with number 6, for which rank 0 comes late."""
    files = pair()
    for file in files:
        for step in range(12):
            called = step * 1000 + (700 if (file.rank, step) == (0, 6) else 10 * file.rank)
            call(file, step, called, step * 1000 + 700, step * 1000 + 800, name="loss")
    steps = found_in(files, tmp_path).steps
    assert steps is not None
    assert [(step.number, step.late_rank) for step in steps.slowest[:2]] == [(5, 0), (0, -1)]


def test_the_slowest_step_of_unnamed_operations_is_found_by_kind_and_bytes(tmp_path: Path) -> None:
    files = pair()
    for file in files:
        for step in range(10):
            call(file, 2 * step, step * 1000, step * 1000 + 10, step * 1000 + 20, nbytes=8)
            call(file, 2 * step + 1, step * 1000 + 300, step * 1000 + 310, step * 1000 + 320, nbytes=4_000_000)
    found = found_in(files, tmp_path)
    assert found.steps is not None
    assert report.marker(found) == "allreduce of 4.00 MB"
