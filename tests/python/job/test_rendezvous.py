"""Ranks of one host meet and share descriptors; whoever is missing, wrong or dead is named on every rank, in time."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from pathlib import Path

import pytest
from deadlines import HANG_S, SOON_S
from ranks import SIZES, receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce.errors import PeerLostError
from ringreduce.job.environment import detect
from ringreduce.job.rendezvous import Joined, join_job, share_fd

CONTENT = b"the same memory for all ranks"


def segment() -> int:
    fd = os.memfd_create("test segment", os.MFD_CLOEXEC)
    os.pwrite(fd, CONTENT, 0)
    return fd


def watched_pid(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return int(re.search(r"^Pid:\s*(-?\d+)", file.read(), re.MULTILINE)[1])  # type: ignore[index]


def join(init_count: int = 1, timeout_s: float = 30, rank: int | None = None, size: int | None = None) -> Joined:
    return join_job(detect(rank, size, network=False), init_count, timeout_s, segment)


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


# --- what the ranks get ----------------------------------------------------------------------------------------------


def meet() -> tuple[int, bytes, list[int], bool]:
    before = open_fds()
    joined = join()
    fds = [joined.fd, *(fd for fd in joined.pidfds if fd >= 0)]
    closed_on_exec = all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in fds)
    watched = [watched_pid(fd) if fd >= 0 else -1 for fd in joined.pidfds]
    content = os.pread(joined.fd, 100, 0)
    assert len(open_fds() - before) == len(fds)
    joined.close()
    joined.close()
    assert open_fds() == before
    return os.getpid(), content, watched, closed_on_exec


def meet_and_stay() -> tuple[int, bytes, list[int], bool]:
    seen = meet()
    send_to_test("has looked")
    receive_from_test()  # a pidfd of a process that has ended names none
    return seen


@pytest.mark.parametrize("size", SIZES)
def test_all_ranks_share_memory_and_watch_each_other(size: int) -> None:
    with start_ranks(meet_and_stay, size) as job:
        for rank in range(size):
            assert job.receive(rank) == "has looked"
        for rank in range(size):
            job.send(rank)
        answers = [outcome.value for outcome in job.wait()]
    pids = [pid for pid, *_ in answers]
    for rank, (_, content, watched, closed_on_exec) in enumerate(answers):
        assert content == CONTENT
        assert watched == [*pids[:rank], -1, *pids[rank + 1 :]]
        assert closed_on_exec


def meet_without_ringrun() -> bytes:
    return meet()[1]


def test_without_a_secret_the_job_of_one_parent_meets() -> None:
    assert run_ranks(meet_without_ringrun, 3, env={"RINGREDUCE_RENDEZVOUS": None}) == [CONTENT] * 3


def rounds(count: int) -> tuple[float, int]:
    before = open_fds()
    times = []
    for number in range(1, count + 1):
        start = time.perf_counter()
        joined = join(number)
        times.append(time.perf_counter() - start)
        joined.close()
    return sorted(times)[count // 2], len(open_fds() - before)


def test_a_hundred_jobs_in_a_row_leak_nothing_and_are_quick() -> None:
    for median_s, leaked in run_ranks(rounds, 3, args=(100,)):
        assert leaked == 0
        assert median_s < 0.02  # the whole of init() and shutdown() has 20 ms


# --- who is missing ---------------------------------------------------------------------------------------------------


def come_unless(absent: int, timeouts_s: list[float]) -> None:
    place = detect(network=False)
    if place.rank == absent:
        receive_from_test()  # stays alive until the others have given up
    else:
        join(timeout_s=timeouts_s[place.rank])


@pytest.mark.parametrize(("absent", "words"), [(2, "rank 2 did not come"), (0, "rank 0 did not come")])
def test_a_missing_rank_is_named_on_every_rank(absent: int, words: str) -> None:
    with start_ranks(come_unless, 3, args=(absent, [3] * 3)) as job:
        for rank in {0, 1, 2} - {absent}:
            assert job.procs[rank].wait(SOON_S) == 1
        job.send(absent)
        outcomes = job.wait(SOON_S)
        assert outcomes[absent].error is None
        for rank in {0, 1, 2} - {absent}:
            assert outcomes[rank].kind == "TimeoutError", job.report()
            assert words in str(outcomes[rank].error)
            assert re.search(r"@ringreduce\.\d+\.test-.*\.1 within 3 s", str(outcomes[rank].error))


def test_the_first_to_run_out_of_time_ends_it_for_all() -> None:
    with start_ranks(come_unless, 3, args=(2, [600, 3, 0])) as job:
        begin = time.monotonic()
        for rank in (0, 1):
            assert job.procs[rank].wait(SOON_S) == 1
        assert time.monotonic() - begin < SOON_S
        job.send(2)
        assert [o.kind for o in job.wait(SOON_S)] == ["TimeoutError", "TimeoutError", None]
        assert "rank 2 did not come" in str(job.outcomes()[1].error)


def join_at(counts: list[int]) -> None:
    join(counts[detect(network=False).rank], timeout_s=0.5)


def test_different_init_counts_do_not_meet() -> None:
    with start_ranks(join_at, 2, args=([2, 1],)) as job:
        first, second = job.wait()
        assert first.kind == second.kind == "TimeoutError"
        assert "init() number 2" in str(first.error)
        assert "init() number 1" in str(second.error)


# --- who is wrong -----------------------------------------------------------------------------------------------------


def join_as(places: list[tuple[int, int]]) -> None:
    rank, size = places[detect(network=False).rank]
    join(timeout_s=10, rank=rank, size=size)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([(0, 3), (1, 3), (1, 3)], "two processes say they are rank 1: pid"),
        ([(0, 3), (1, 2), (2, 3)], "says the job has 2 ranks, rank 0 says 3"),
        ([(0, 3), (0, 3), (1, 3)], "another process is rank 0"),
    ],
)
def test_ranks_that_disagree_all_say_so(places: list[tuple[int, int]], words: str) -> None:
    with start_ranks(join_as, 3, args=(places,)) as job:
        if places[1][0] == 0:  # the first of two ranks 0 goes on waiting for rank 2
            loser = job.wait_first()
            assert job.outcomes()[loser].kind == "MismatchError"
            assert words in str(job.outcomes()[loser].error)
            return
        outcomes = job.wait(SOON_S)
        named = [o for o in outcomes if words in str(o.error)]
        assert {o.kind for o in named} == {"MismatchError"}, job.report()
        assert len(named) >= 2
        # A third rank that came before the quarrel was told of it; one that came later found nobody.
        assert {o.kind for o in outcomes} <= {"MismatchError", "PeerLostError", "TimeoutError"}


# --- who dies ---------------------------------------------------------------------------------------------------------


def announce_and_join(late: int) -> None:
    send_to_test("joining")
    if detect(network=False).rank == late:
        receive_from_test()
    join(timeout_s=60)


@pytest.mark.parametrize(("victim", "words"), [(1, "lost rank 1"), (0, "lost rank 0: it gathers the ranks")])
def test_a_rank_that_dies_while_waiting_is_named(victim: int, words: str) -> None:
    with start_ranks(announce_and_join, 4, args=(3,)) as job:
        for rank in range(4):
            job.receive(rank)
        _wait_until_connected(job.procs[victim].pid)
        killed = job.kill(victim, signal.SIGKILL)
        for rank in {0, 1, 2} - {victim}:
            assert job.procs[rank].wait(SOON_S) == 1
            assert time.monotonic() - killed < SOON_S
            assert job.outcomes()[rank].kind == "PeerLostError", job.report()
            assert words in str(job.outcomes()[rank].error)


def _wait_until_connected(pid: int) -> None:
    """Until two clients are connected and the process sleeps, that is waits for the last rank.

    The job's own sockets are those whose name holds this process's id (ranks.py puts it there).
    """
    deadline = time.monotonic() + HANG_S
    while True:
        with open("/proc/net/unix") as sockets, open(f"/proc/{pid}/stat") as stat:
            sockets_open = sum(f".test-{os.getpid()}-" in line for line in sockets)
            asleep = stat.read().rpartition(")")[2].split()[0] == "S"
        if sockets_open == 3 and asleep:  # the listener, and the server's end of two connections
            return
        assert time.monotonic() < deadline, f"{sockets_open} sockets, asleep: {asleep}"


def fail_to_allocate() -> None:
    def no_memory() -> int:
        raise MemoryError("no memory for the control segment")

    join_job(detect(network=False), 1, 30, no_memory)


def test_a_failure_of_rank_0_reaches_all() -> None:
    with start_ranks(fail_to_allocate, 3) as job:
        outcomes = job.wait(SOON_S)
        assert [o.kind for o in outcomes] == ["MemoryError", "HorovodInternalError", "HorovodInternalError"]
        assert all("no memory for the control segment" in str(o.error) for o in outcomes)


# --- one more file within a job ---------------------------------------------------------------------------------------


def share(members: list[int]) -> bytes | None:
    rank = detect(network=False).rank
    if rank not in members:
        return None
    address, secret = b"ringreduce.test." + os.environ["RINGREDUCE_RENDEZVOUS"][:40].encode(), b"shared"
    before = open_fds()
    got = share_fd(segment, members, rank, address, secret, 30)
    content = os.pread(got, 100, 0)
    os.close(got)
    assert open_fds() == before
    return content


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [1, 3], [3, 0, 2], [2]])
def test_share_fd(members: list[int]) -> None:
    expected = [CONTENT if rank in members else None for rank in range(4)]
    assert run_ranks(share, 4, args=(members,)) == expected


def leave_a_meeting(noticed: Path, members: list[int]) -> str:
    """Rank 1 never comes. Rank 2 is the first to notice, and leaves. Returns what this rank raised."""
    rank = detect(network=False).rank
    if rank == 1:
        return ""

    def check() -> None:
        if rank == 2:
            noticed.touch()
        if noticed.exists():
            raise PeerLostError("lost rank 1")

    address = b"ringreduce.test." + os.environ["RINGREDUCE_RENDEZVOUS"][:40].encode()
    with pytest.raises(PeerLostError) as raised:
        share_fd(segment, members, rank, address, b"shared", 30, check)
    return str(raised.value)


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [2, 0, 1, 3]])
def test_a_rank_that_leaves_a_meeting_since_another_died_is_not_named(members: list[int], tmp_path: Path) -> None:
    noticed = tmp_path / "noticed"
    for _ in range(5):
        raised = run_ranks(leave_a_meeting, 4, args=(noticed, members))
        assert raised == ["lost rank 1", "", "lost rank 1", "lost rank 1"]
        noticed.unlink()
