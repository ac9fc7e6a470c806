"""What a rank's time went into: computing, waiting for others, communication, messages."""

from __future__ import annotations

from pathlib import Path

from timeline_files import US, RankFile, call, found_in, pair

from ringreduce.timeline import page
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.record_file import ASYNCHRONOUS, FAILED, GPU_MEMORY, QUICK


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


def test_join_in_a_timeline_of_one_operation(tmp_path: Path) -> None:
    first, second = pair()
    call(first, 0, 100, 160, 190)
    call(second, 0, 150, 160, 190)
    first.wait(1, 200 * US, 400 * US, kind="join")
    one, two = found_in((first, second), tmp_path).times
    assert (one.computing_ns, one.waiting_ns, one.exposed_ns) == (10 * US, (50 + 200) * US, 40 * US)
    assert (two.computing_ns, two.waiting_ns, two.exposed_ns) == (0, 0, 40 * US)


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


def test_a_wait_for_a_rank_without_a_record_is_waiting(tmp_path: Path) -> None:
    files = [RankFile(rank, 3) for rank in range(2)]  # rank 2 left no file
    for file in files:
        call(file, 0, 100, 900, 950)
        file.operation(1, 1000 * US, None, 2000 * US, flags=FAILED)
        file.wait(1, 1000 * US, 2000 * US)
    found = found_in(files, tmp_path)
    assert found.times[0].waiting_ns == (800 + 1000) * US
    assert found.times[0].exposed_ns == 50 * US
