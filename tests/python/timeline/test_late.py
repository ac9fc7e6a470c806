"""Who was late in a timeline, by how much, and when nobody is to be named."""

from __future__ import annotations

from pathlib import Path

import pytest
from timeline_files import US, RankFile, call, found_in, pair, steady_job, write_all

from ringreduce.timeline import report
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import analyse
from ringreduce.timeline.analysis.late import late_ranks
from ringreduce.timeline.job import Job


def test_the_late_rank_is_named_with_what_it_costs(tmp_path: Path) -> None:
    found = found_in(steady_job(4, 30, late_rank=2, late_ns=400 * US), tmp_path)
    late = found.lateness.ranks[2]
    assert (late.last_in, late.judged, late.others_waited_ns) == (60, 60, 60 * 400 * US)
    assert (late.longest_ns, late.is_pause) == (400 * US, False)
    assert found.late == [2]
    first = conclusions(found)[0]
    assert first.startswith("Rank 2 makes the others wait: it was last in 100 % of 60 operations; the others waited ")
    assert "24.0 ms (40 % of the span) for it." in first
    assert report.text(found).splitlines()[2].startswith("Rank 2 makes the others wait")


def test_nobody_is_late_without_delay_and_a_pause_is_told(tmp_path: Path) -> None:
    even = found_in(steady_job(4, 30), tmp_path / "even")
    assert even.late == []
    assert not even.lateness.names_last.any()
    files = steady_job(2, 30, late_rank=1, late_ns=1 * US)
    call(files[0], 60, 60_000, 95_000, 95_100)
    call(files[1], 60, 95_000, 95_000, 95_100)
    paused = found_in(files, tmp_path / "paused")
    assert paused.late == [1]
    assert (
        "Most of it is one pause: 35.0 ms in allreduce #60, which it called at 94.900 s" not in conclusions(paused)[0]
    )
    assert "Most of it is one pause: 35.0 ms in allreduce #60" in conclusions(paused)[0]


@pytest.mark.parametrize(("late_ns", "is_named"), [(50 * US, False), (300 * US, True)])
def test_clocks_must_be_sure_who_was_last(tmp_path: Path, late_ns: int, is_named: bool) -> None:
    """Two hosts, whose clocks are known within some 100 us: rank 1 is late by less, and by more than that."""
    moved = [RankFile(0, 3, host="node0"), *(RankFile(rank, 3, host="node1", clock_ns=7 * 10**9) for rank in (1, 2))]
    for file in moved:
        for step in range(20):
            at = step * 1000 + 100
            late = late_ns // US
            call(file, step, at + (late if file.rank == 1 else 0), at + late + 10, at + late + 210)
    for sent in range(0, 20_000, 500):
        moved[1].question(sent * US, (sent + 100) * US, (sent + 200) * US, moved[0])
    found = found_in(moved, tmp_path)
    assert 50 * US < found.job.clocks[1].half_width_ns < 250 * US
    assert bool(found.lateness.names_last.all()) == bool(found.lateness.names_last.any()) == is_named
    assert found.lateness.ranks[1].last_in == (20 if is_named else 0)
    assert (found.lateness.nameless_ns > 0) != is_named


def test_ranks_of_one_host_are_compared_by_one_clock(tmp_path: Path) -> None:
    """Rank 2 is 20 us later than rank 1 of its host, whose clock is unknown; rank 0 takes no part."""
    files = [RankFile(rank, 3, host=f"node{min(rank, 1)}") for rank in range(3)]
    for file in files[1:]:
        group = file.group((1, 2), group_id=1)
        for number in range(10):
            call(file, number, number * 100 + 20 * (file.rank - 1), number * 100 + 50, number * 100 + 60, group=group)
    found = found_in(files, tmp_path)
    assert found.job.clocks[1].half_width_ns < 0
    assert found.lateness.ranks[2].last_in == 10
    assert found.lateness.ranks[0].judged == 0


def test_an_operation_that_lacks_a_rank_names_nobody(tmp_path: Path) -> None:
    write_all(steady_job(3, 20, late_rank=1, late_ns=300 * US)[:2], tmp_path)
    found = analyse(Job.load(tmp_path))
    assert not found.lateness.names_last.any()
    assert conclusions(found)[0] == "Who is late cannot be told: the records of some ranks are missing."


def test_unknown_clocks_name_nobody_and_give_no_path(tmp_path: Path) -> None:
    files = steady_job(2, 20, late_rank=1, late_ns=300 * US)
    files[1].host = "node1"
    found = found_in(files, tmp_path)
    text = report.text(found)
    assert "Who is late cannot be told: the hosts' clocks were never compared." in text
    assert "Critical path" in text
    assert "not to be relied on" in text
    assert found.late == []
    assert not any(sentence.startswith("The critical path") for sentence in conclusions(found))


@pytest.mark.parametrize(
    ("waited", "late"),
    [
        ({0: (0, 0), 1: (200, 9), 2: (10, 9), 3: (60, 9)}, [1]),
        ({0: (0, 0), 1: (99, 9), 2: (0, 0), 3: (0, 0)}, []),  # below a tenth of the span
        ({0: (0, 0), 1: (200, 3), 2: (0, 0), 3: (0, 0)}, []),  # too few times
        ({0: (0, 0), 1: (200, 9), 2: (10, 9), 3: (70, 9)}, []),  # not three times rank 3
        ({0: (0, 0), 1: (200, 9), 2: (10, 9), 3: (110, 9)}, [1, 3]),
        ({0: (0, 0), 1: (200, 9), 2: (150, 9), 3: (110, 9)}, []),  # most are
        ({0: (0, 0), 1: (200, 9)}, [1]),
        ({0: (900, 9)}, []),
    ],
)
def test_who_is_late_stands_out(waited: dict[int, tuple[int, int]], late: list[int]) -> None:
    assert late_ranks(waited, 1000) == late


def test_a_rank_that_was_kept_from_its_call_by_a_message_is_not_late(tmp_path: Path) -> None:
    """Rank 1 receives from a slow rank 2 before each sum; rank 0 waits for it."""
    files = [RankFile(rank, 3) for rank in range(3)]
    for step in range(20):
        begin = 1000 * step
        call(files[0], step, begin, begin + 900, begin + 950)
        files[1].message(step, begin * US, (begin + 880) * US, "recv from rank 2", 2)
        files[1].wait(step, begin * US, (begin + 880) * US, "recv from rank 2")
        call(files[1], step, begin + 890, begin + 900, begin + 950)
        call(files[2], step, begin + 885, begin + 900, begin + 950)
    found = found_in(files, tmp_path)
    assert found.lateness.late == []
    assert found.lateness.ranks[1].others_waited_ns < 20 * 20 * US
    assert any("in waits for messages" in sentence for sentence in conclusions(found))


def test_records_that_do_not_belong_together_accuse_nobody(tmp_path: Path) -> None:
    """As where the ranks began their timelines at different steps."""
    first, second = pair()
    for step in range(20):
        call(first, step, 100 * step, 100 * step + 50, 100 * step + 60)
        call(second, step, 100 * step + 140, 100 * step + 150, 100 * step + 160)
    found = found_in((first, second), tmp_path)
    assert not found.lateness.names_last.any()
    assert found.late == []
    assert any("do not belong together" in sentence for sentence in conclusions(found))


def test_ranks_that_wait_in_turns_are_told(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for step in range(40):
        begin = 1000 * step
        for rank, file in enumerate(files):
            late = 500 if step % 4 == rank else 0
            call(file, step, begin + late, begin + 510, begin + 520)
    found = found_in(files, tmp_path)
    assert any("for one another, in turns" in sentence for sentence in conclusions(found))
    assert not found.late
