"""`ringreduce timeline report`: where the time went, who was late, the critical path, steps, text and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from timeline_files import KINDS, RankFile, steady_job, write_all

from ringreduce.timeline import page, report
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.critical_path import COMPUTING, MESSAGE
from ringreduce.timeline.analysis.found import Analysis, analyse
from ringreduce.timeline.analysis.late import late_ranks
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import ASYNCHRONOUS, FAILED, GPU_MEMORY, QUICK, RECORD, SHARED_BUCKET
from ringreduce.timeline.report_json import as_json

US = 1000


def found_in(files: Sequence[RankFile], folder: Path) -> Analysis:
    return analyse(Job.load(write_all(files, folder)))


def pair() -> tuple[RankFile, RankFile]:
    return RankFile(0, 2), RankFile(1, 2)


def call(file: RankFile, number: int, called: int, started: int, ended: int, **more: Any) -> None:
    """A synchronous call: the thread stands still from its call to the end. Times in us."""
    file.operation(number, called * US, started * US, ended * US, **more)
    known = {key: more[key] for key in ("name", "kind", "thread", "group") if key in more}
    file.wait(number, called * US, ended * US, **known)


def test_the_time_of_a_rank_is_its_four_parts(tmp_path: Path) -> None:
    first, second = pair()
    first.message(0, 0, 40 * US, "send to rank 1", 1, nbytes=8)
    first.wait(0, 10 * US, 40 * US, "send to rank 1")
    call(first, 0, 100, 160, 190)
    call(first, 1, 200, 310, 330)
    call(second, 0, 150, 160, 200)
    call(second, 1, 300, 310, 330)
    found = found_in((first, second), tmp_path)
    one, two = found.times
    parts = (one.computing_ns, one.waiting_ns, one.exposed_ns, one.message_ns)
    assert parts == (80 * US, (50 + 100) * US, (40 + 30) * US, 30 * US)
    assert sum(parts) == one.span_ns == 330 * US
    assert (two.computing_ns, two.waiting_ns, two.exposed_ns, two.message_ns) == (100 * US, 0, 80 * US, 0)
    assert (two.begin_ns - one.begin_ns, two.span_ns) == (150 * US, 180 * US)
    assert found.share("waiting_ns") == 150 / 510


def test_the_time_in_join_is_waiting_for_others_and_nobody_is_late(tmp_path: Path) -> None:
    first, second = pair()
    for number in range(5):
        call(second, number, 100 * number, 100 * number + 10, 100 * number + 20)
    first.wait(1, 50 * US, 450 * US, kind="join")
    found = found_in((first, second), tmp_path)
    one = found.times[0]
    assert (one.computing_ns, one.waiting_ns, one.exposed_ns, one.message_ns) == (0, 400 * US, 0, 0)
    assert not found.lateness.late
    page.write(found, tmp_path / "page.html")
    assert "rank 0 waits 400 us in join()" in (tmp_path / "page.html").read_text()


def test_only_the_main_thread_and_each_moment_once_count(tmp_path: Path) -> None:
    """Another thread's wait is none of the main thread's time; waits within one another are one."""
    first, second = pair()
    first.operation(0, 0, 30 * US, 90 * US, flags=ASYNCHRONOUS, thread=1)
    first.wait(0, 10 * US, 90 * US, thread=1)
    call(first, 1, 40, 60, 100)
    first.wait(1, 50 * US, 100 * US)
    second.operation(0, 20 * US, 30 * US, 90 * US, flags=ASYNCHRONOUS)
    call(second, 1, 40, 60, 100)
    found = found_in((first, second), tmp_path)
    assert (found.times[0].computing_ns, found.times[0].exposed_ns) == (40 * US, 60 * US)


def test_the_main_thread_stands_still_in_a_wait_of_another_thread(tmp_path: Path) -> None:
    """As under DDP: a thread waits from the call on; the main thread computes for 30 us, then it has no CPU time."""
    first, second = pair()
    first.operation(0, 10 * US, 60 * US, 100 * US, flags=ASYNCHRONOUS)
    first.wait(0, 10 * US, 100 * US, thread=1, main_cpu_ns=30 * US)
    second.operation(0, 60 * US, 60 * US, 100 * US, flags=ASYNCHRONOUS)
    found = found_in((first, second), tmp_path)
    one = found.times[0]
    assert (one.computing_ns, one.waiting_ns, one.exposed_ns) == (30 * US, 20 * US, 40 * US)
    assert found.lateness.ranks[1].others_waited_ns == 20 * US


def test_a_quick_call_without_a_wait_is_no_computing(tmp_path: Path) -> None:
    first, second = pair()
    first.operation(0, 10 * US, 15 * US, 16 * US, flags=QUICK)
    second.operation(0, 15 * US, 15 * US, 18 * US, flags=QUICK)
    time = found_in((first, second), tmp_path).times[0]
    assert (time.computing_ns, time.waiting_ns, time.exposed_ns) == (0, 5 * US, 1 * US)


def test_overlap_is_the_part_of_communication_in_which_the_thread_computes(tmp_path: Path) -> None:
    first, second = pair()
    for file in (first, second):
        file.operation(0, 0, 10 * US, 60 * US, "a", flags=ASYNCHRONOUS)
        file.operation(0, 0, 40 * US, 110 * US, "b", flags=ASYNCHRONOUS)  # 10 to 110 together
        file.wait(0, 90 * US, 110 * US, "b")
        file.operation(0, 0, 120 * US, 170 * US, "gpu", flags=ASYNCHRONOUS | GPU_MEMORY)
        file.operation(0, 0, 130 * US, 190 * US, "failed", flags=ASYNCHRONOUS | FAILED)
    found = found_in((first, second), tmp_path)
    assert (found.times[0].communication_ns, found.times[0].hidden_ns) == (100 * US, 80 * US)
    assert found.overlap == 0.8
    assert "Communication is hidden: 80 % overlaps with computing." in " ".join(conclusions(found))


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


def segments(found: Analysis) -> list[tuple[int, int, int, int]]:
    """(begin, end, rank, operation) of the path, in us."""
    return [(begin // US, end // US, rank, operation) for begin, end, rank, operation in found.path.segments.tolist()]


def test_the_critical_path_goes_over_the_last_ranks_and_what_they_computed(tmp_path: Path) -> None:
    first, second = pair()
    call(first, 0, 50, 100, 120, name="a")
    call(first, 0, 200, 200, 230, name="b")
    call(second, 0, 100, 100, 125, name="a")
    call(second, 0, 140, 200, 231, name="b")
    second.message(0, 0, 30 * US, "recv from rank 0", 0)
    second.wait(0, 10 * US, 30 * US, "recv from rank 0")
    found = found_in((first, second), tmp_path)
    a, b = (found.job.names.index(name) for name in "ab")
    of = {int(row["name"]): index for index, row in enumerate(found.job.operations)}
    assert segments(found) == [
        (0, 10, 1, COMPUTING),
        (10, 30, 1, MESSAGE),
        (30, 100, 1, COMPUTING),
        (100, 120, 0, of[a]),
        (120, 200, 0, COMPUTING),
        (200, 231, 1, of[b]),
    ]
    path = found.path
    assert (path.span_ns, path.message_ns) == (231 * US, 20 * US)
    assert path.computing_ns == {0: 80 * US, 1: 80 * US}
    assert path.communication_ns == {(0, b): 31 * US, (0, a): 20 * US}
    assert path.others_stood_ns == {0: 65 * US, 1: 50 * US}  # 120-125 and 140-200; 50-100


def test_the_critical_path_follows_the_queue_of_a_rank(tmp_path: Path) -> None:
    """b was called at 20 but ran after a, which ran to 100: what both ranks computed since 10 is not on the path."""
    files = pair()
    for file in files:
        call_at = 10 - file.rank
        file.operation(0, call_at * US, 10 * US, 100 * US, "a", flags=ASYNCHRONOUS)
        file.operation(0, (20 - file.rank) * US, 101 * US, 150 * US, "b", flags=ASYNCHRONOUS)
        file.wait(0, 60 * US, 100 * US, "a")
        file.wait(0, 100 * US, 150 * US, "b")
        file.message(0, 0, 1, "send to rank 1", 1)
    found = found_in(files, tmp_path)
    assert segments(found) == [(0, 10, 0, COMPUTING), (10, 100, 0, 0), (100, 150, 0, 1)]


def test_a_wait_for_what_has_ended_before_is_not_on_the_path(tmp_path: Path) -> None:
    files = pair()
    for file in files:
        file.operation(0, (0 + file.rank) * US, 5 * US, 20 * US, "a", flags=ASYNCHRONOUS)
        file.wait(0, 90 * US, 91 * US, "a")
        call(file, 0, 100 + file.rank, 102, 110, name="b")
    found = found_in(files, tmp_path)
    assert segments(found) == [(1, 101, 1, COMPUTING), (101, 110, 0, 1)]


def test_the_path_names_a_rank_whose_calls_come_late_one_by_one(tmp_path: Path) -> None:
    """Gradients: each of ten calls of rank 2 comes 50 us after the one before, and takes 45 us to reduce. The others
    wait 5 us for each, and see 45 us of communication; but all of it goes by while rank 2 computes."""
    files = [RankFile(rank, 4) for rank in range(4)]
    for step in range(20):
        for index in range(10):
            late = step * 1000 + 100 + 50 * (index + 1)
            for file in files:
                called = late if file.rank == 2 else step * 1000 + 50
                file.operation(step, called * US, late * US, (late + 45) * US, f"g{index}", flags=ASYNCHRONOUS)
                begin = step * 1000 + 601 if file.rank == 2 else max(called, late - 5)
                if begin < late + 45:
                    file.wait(step, begin * US, (late + 45) * US, f"g{index}")
    found = found_in(files, tmp_path)
    assert found.lateness.late == []
    assert found.path.late == found.late == [2]
    assert "Rank 2 makes the others wait: its computing is" in conclusions(found)[0]


def random_records(generator: np.random.Generator, count: int) -> np.ndarray:
    """Well-formed, and senseless as a whole: operations end on one rank before another calls them."""
    records = np.zeros(count, RECORD)
    records["called_ns"] = generator.integers(10**9, 10**9 + 2000, count)
    records["ended_ns"] = records["called_ns"] + generator.integers(0, 300, count)
    middle = records["called_ns"] + (records["ended_ns"] - records["called_ns"]) // 2
    records["type"] = generator.choice([0, 0, 1, 1, 3], count)
    records["started_ns"] = np.where((records["type"] == 0) & (generator.random(count) < 0.9), middle, 0)
    for column, most in (("number", 12), ("name", 4), ("nbytes", 1 << 22), ("kind", 3), ("thread", 2), ("flags", 32)):
        records[column] = generator.integers(0, most, count)
    records["peer"] = -1
    return records


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_records_say_the_parts_add_up_and_the_path_goes_back(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(1, 5))
    for rank in range(size):
        file = RankFile(rank, size, host=f"node{generator.integers(0, 2)}")
        for name in "abc":
            file.names[name] = len(file.names) + 1
        file.write(tmp_path, random_records(generator, int(generator.integers(0, 120))))
    found = analyse(Job.load(tmp_path))
    for time in found.times:
        assert time.computing_ns + time.waiting_ns + time.exposed_ns + time.message_ns == time.span_ns
        assert min(time.computing_ns, time.waiting_ns, time.exposed_ns, time.message_ns) >= 0
        assert 0 <= time.hidden_ns <= time.communication_ns <= time.span_ns
        begins, ends = time.standing["begin_ns"], time.standing["end_ns"]
        assert (begins[1:] >= ends[:-1]).all()
    path = found.path.segments
    assert (path["end_ns"] > path["begin_ns"]).all()
    assert (path["begin_ns"][1:] == path["end_ns"][:-1]).all()
    assert found.path.span_ns <= found.job.span_ns
    assert len(report.text(found).splitlines()) <= 100
    json.dumps(as_json(found), allow_nan=False)


def stepping(lengths_us: Sequence[int], late: int = 1, more: Sequence[str] = ()) -> list[RankFile]:
    """Steps of these lengths, each of gradients b and c; rank `late` is late in those that are not of 1000 us."""
    files = [RankFile(rank, 3) for rank in range(3)]
    at = 0
    for step, length in enumerate(lengths_us):
        for file in files:
            slow = length - 1000 if file.rank == late else 0
            for index, name in enumerate(("b", "c", *more)):
                called = at + 500 + 100 * index
                call(
                    file,
                    step,
                    called + slow,
                    at + length - 400 + 100 * index,
                    at + length - 350 + 100 * index,
                    name=name,
                )
        at += length
    return files


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


def test_operations_are_counted_timed_and_have_a_bandwidth(tmp_path: Path) -> None:
    files = [RankFile(rank, 4) for rank in range(4)]
    for file in files:
        for number in range(3):
            at = number * 10_000
            call(file, number, at, at + 10, at + 1010, name="sum", nbytes=8_000_000)
            call(file, number, at + 2000, at + 2010, at + 3010, name="all", kind="allgather", nbytes=1_000_000)
            call(file, number, at + 4000, at + 4010, at + 4110, name="small", nbytes=1000)
            call(file, number, at + 5000, at + 5010, at + 5510, name="gpu", nbytes=8_000_000, flags=GPU_MEMORY)
            call(file, number, at + 6000, at + 6010, at + 6510, name="root", kind="broadcast", nbytes=2_000_000)
            for name in ("x", "y"):
                call(file, number, at + 7000, at + 7010, at + 7510, name=name, nbytes=1_000_000, flags=SHARED_BUCKET)
    found = found_in(files, tmp_path)
    rows = {found.job.names[row.name]: row for row in found.table}
    assert rows["sum"].operations == 3
    assert rows["sum"].nbytes == 24_000_000
    assert (rows["sum"].time_ns, rows["sum"].p50_ns, rows["sum"].max_ns) == (3000 * US, 1000 * US, 1000 * US)
    assert found.job.kinds[rows["all"].kind] == "allgather"
    busbw = {name: row.busbw_GBps for name, row in rows.items()}
    assert busbw.pop("small") is None
    assert busbw.pop("gpu") is None
    assert rows["gpu"].on_gpu
    # 2 (N-1)/N; (N-1)/N of all parts; as it is; two that share a bucket go as one of the bytes of both
    assert busbw == pytest.approx({"sum": 12.0, "all": 3.0, "root": 4.0, "x": 6.0, "y": 6.0})
    assert [found.job.names[row.name] for row in found.table][:2] == ["sum", "all"]


def test_the_text_fits_a_terminal_whatever_the_names(tmp_path: Path) -> None:
    names = [f"\x1b[31mlayer.{index}.{'very.long.name' * 10}\n" for index in range(40)]
    files = steady_job(40, 6, names=names, late_rank=33, late_ns=500 * US)
    for file in files:
        file.host = "node-with-a-name-that-is-long"
        file.has_ended = file.rank % 2 == 0
        file.dropped = file.rank
    text = report.text(analyse(Job.load(write_all(files, tmp_path))))
    lines = text.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100
    assert all(line.isprintable() for line in lines)
    begin = [line.startswith(("warning: ", "  ")) for line in lines[1:]].index(False) + 1
    assert 2 < begin < 20  # warnings come first, and not all of 40,
    assert "more; --json has them all" in lines[begin - 1]
    assert lines[begin + 1].startswith("Rank 33 makes the others wait")  # then what matters
    assert re.search(r"^ +33 node-with-a-n\.\.\.", text, re.MULTILINE)  # the late one is among the 16 that are shown
    assert "and 24 more" in text


def test_json_is_documented_key_by_key(tmp_path: Path) -> None:
    job = Job.load(write_all(stepping([1000] * 9 + [1500]), tmp_path))
    document = as_json(analyse(job))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    documented = set(re.findall(r"\w+", as_json.__doc__ or ""))
    rows: list[Any] = [document]
    while rows:
        row = rows.pop()
        assert set(row) - {"format", "version"} <= documented
        rows += [value for value in row.values() if isinstance(value, dict)]
        rows += [item for value in row.values() if isinstance(value, list) for item in value if isinstance(item, dict)]


def test_json_has_the_figures_with_their_units(tmp_path: Path) -> None:
    document: dict[str, Any] = as_json(
        analyse(Job.load(write_all(steady_job(4, 10, late_rank=2, late_ns=400 * US), tmp_path)))
    )
    assert (document["ranks"], document["size"], document["hosts"], document["operations"]) == (4, 4, 1, 20)
    assert document["nbytes"] == 20 * 4096
    assert document["late_ranks"] == [2]
    late = document["per_rank"][2]
    assert late["others_waited_s"] == pytest.approx(20 * 400e-6)
    assert (late["last_in"], late["judged_operations"], late["operations"]) == (20, 20, 20)
    parts = ("computing_s", "waiting_s", "exposed_s", "message_s")
    for row in document["per_rank"]:
        assert sum(row[part] for part in parts) == pytest.approx(row["span_s"])
    assert sum(document[part.replace("_s", "_share")] for part in parts) == pytest.approx(1)
    assert {(row["kind"], row["name"]) for row in document["by_name"]} == {("allreduce", "loss"), ("allreduce", "")}
    path = document["critical_path"]
    assert path["computing_s"] + path["communication_s"] + path["message_s"] == pytest.approx(path["span_s"])
    assert document["steps"]["count"] == 9
    assert document["clock_error_s"] == 0


def test_a_timeline_without_operations_is_reported_as_such(tmp_path: Path) -> None:
    files = pair()
    found = found_in(files, tmp_path)
    assert "No operation was recorded." in report.text(found)
    assert json.loads(json.dumps(as_json(found)))["steps"] is None


def test_kinds_of_the_report_are_those_of_the_files() -> None:
    """The bandwidth of allgather and allreduce goes by the kinds' names."""
    assert {"allreduce", "allgather", "reducescatter", "alltoall"} <= set(KINDS)


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


def test_a_wait_for_a_rank_without_a_record_is_waiting(tmp_path: Path) -> None:
    files = [RankFile(rank, 3) for rank in range(2)]  # rank 2 left no file
    for file in files:
        call(file, 0, 100, 900, 950)
        file.operation(1, 1000 * US, None, 2000 * US, flags=FAILED)
        file.wait(1, 1000 * US, 2000 * US)
    found = found_in(files, tmp_path)
    assert found.times[0].waiting_ns == (800 + 1000) * US
    assert found.times[0].exposed_ns == 50 * US


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


SECOND = 1_000_000_000


def ring_of_hosts(uses: Sequence[tuple[int, float]], seconds: int = 9) -> list[RankFile]:
    """Hosts that each send to the next one so many MB a second, busy so much of the time; one operation a second."""
    files = [RankFile(rank, len(uses), host=f"node{rank}") for rank in range(len(uses))]
    for second in range(seconds):
        begin = second * SECOND
        for file, (mbytes, share) in zip(files, uses, strict=True):
            file.operation(second, begin + US, begin + 2 * US, begin + 3 * US)
            peer = (file.rank + 1) % len(files)
            for quarter in range(4):
                at = begin + quarter * SECOND // 4
                file.link(at, at + SECOND // 4, peer, mbytes * 250_000, int(share * SECOND / 4))
    for file in files[1:]:
        for second in range(seconds):
            file.question(second * SECOND, second * SECOND + 5000, second * SECOND + 10_000, files[0])
    return files


def test_a_slow_link_is_named_with_what_it_carried(tmp_path: Path) -> None:
    found = found_in(ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)]), tmp_path)
    told = [sentence for sentence in conclusions(found) if "link" in sentence]
    (sentence,) = told
    assert sentence == (
        "The link from host node2 to host node3 is slow: it carried 31.1 MB/s while it was busy, 90 % of the time; "
        "the slowest other one 93.3 MB/s."
    )
    rows = as_json(found)["links"]
    assert isinstance(rows, list)
    assert [(row["from_rank"], row["to_rank"], row["is_slow"]) for row in rows] == [
        (2, 3, True),
        (1, 2, False),
        (0, 1, False),
        (3, 0, False),
    ]
    assert (rows[0]["from_host"], rows[0]["to_host"]) == ("node2", "node3")
    assert rows[0]["nbytes"] == 9 * 28_000_000
    assert rows[0]["busy_s"] == pytest.approx(8.1)
    assert rows[0]["busy_share"] == pytest.approx(0.9)
    assert rows[0]["busy_rate"] == pytest.approx(28e6 / 0.9)
    text = report.text(found)
    assert "252 MB   90 %    31.1 MB/s  node2 to node3, slow" in text
    page.write(found, tmp_path / "page.html")
    assert "<td>node2</td><td>node3</td><td>252 MB</td>" in (tmp_path / "page.html").read_text()


ALIKE = {
    "all are alike": [(28, 0.9)] * 4,
    "more than half are slow": [(28, 0.9), (28, 0.9), (28, 0.9), (28, 0.2)],
    "none is busy": [(28, 0.0)] * 4,
    "it is seldom busy": [(1, 0.09), (1, 0.01), (1, 0.01), (1, 0.01)],
    "it carries nothing to speak of": [(1, 0.9), (200, 0.3), (200, 0.3), (200, 0.3)],
    "it is not twice as slow": [(28, 0.5), (28, 0.3), (28, 0.3), (28, 0.3)],
    "two hosts": [(28, 0.9), (28, 0.8)],
}


@pytest.mark.parametrize("why", ALIKE)
def test_no_link_is_called_slow_where(why: str, tmp_path: Path) -> None:
    found = found_in(ring_of_hosts(ALIKE[why]), tmp_path)
    assert len(found.links) == len(ALIKE[why])
    assert not any(link.is_slow for link in found.links)
    assert not any("link" in sentence for sentence in conclusions(found))


def test_an_outage_makes_no_slow_link_and_neither_does_a_short_timeline(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25)] * 4)
    files[1].link(4 * SECOND, 6 * SECOND, 2, 1000, 2 * SECOND)
    assert not any(link.is_slow for link in found_in(files, tmp_path / "outage").links)
    short = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)], seconds=2)
    assert not any(link.is_slow for link in found_in(short, tmp_path / "short").links)


def test_links_of_several_contexts_are_those_of_one_network(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    other = files[2].group(range(4), 0, "another context")
    files[2].link(SECOND, 2 * SECOND, 3, 5_000_000, SECOND // 2, group=other)
    (link,) = [link for link in found_in(files, tmp_path).links if link.is_slow]
    assert link.nbytes == 9 * 28_000_000 + 5_000_000
    assert link.busy_s == pytest.approx(8.1)


def test_a_link_whose_other_host_left_no_file_is_named_by_its_rank(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    found = found_in(files[:3], tmp_path)
    assert [link.to_host for link in found.links] == ["the host of rank 3", "node2", "node1"]


def test_contexts_whose_lowest_ranks_differ_share_a_link(tmp_path: Path) -> None:
    """A context of ranks 1 and 3, beside that of all: what both send from the first host to the second is one link."""
    files = [RankFile(rank, 4, host=f"node{rank // 2}") for rank in range(4)]
    few = {rank: files[rank].group([1, 3], 0, "another context") for rank in (1, 3)}
    for second in range(9):
        begin = second * SECOND
        for file in files:
            file.operation(second, begin + US, begin + 2 * US, begin + 3 * US)
        files[0].link(begin, begin + SECOND, 2, 125_000_000, SECOND)
        files[1].link(begin, begin + SECOND, 3, 12_500_000, SECOND, group=few[1])
        files[2].link(begin, begin + SECOND, 0, 100_000_000, SECOND // 4)
    found = found_in(files, tmp_path)
    assert [(link.from_rank, link.to_rank, link.nbytes) for link in found.links] == [
        (0, 2, 9 * 137_500_000),
        (2, 0, 9 * 100_000_000),
    ]
    assert found.links[0].busy_s == pytest.approx(9)


def test_hosts_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25), (28, 0.3), (28, 0.9), (28, 0.25)])
    for file in files:
        file.host = "localhost"
    written = write_all(files, tmp_path)
    for path in written.iterdir():  # as in containers: each has a clock of its own
        rank = int(path.stem[-4:])
        path.write_bytes(b"")
        one = files[rank]
        process = one.process
        one.process = lambda process=process, rank=rank: process() | {"boot": f"boot {rank}"}  # type: ignore[method-assign]
        one.write(written)
    (sentence,) = (text for text in conclusions(analyse(Job.load(written))) if "link" in text)
    assert "from host localhost (rank 2) to host localhost (rank 3) is slow" in sentence


def test_link_records_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    files = ring_of_hosts([(28, 0.25)] * 4)
    files[0].link(0, SECOND, 7, 5, 5)  # no such rank
    files[0].link(0, SECOND, 1, 5, 2**62)
    job = Job.load(write_all(files, tmp_path))
    files[0].link(0, SECOND, 1, 2**50, 5)
    files[0].link(0, SECOND, 1, 5, 3 * SECOND)  # busy longer than it was looked at
    job = Job.load(write_all(files, tmp_path))
    assert job.files[0].unreadable == 4
    assert analyse(job).links[0].nbytes == 9 * 28_000_000
