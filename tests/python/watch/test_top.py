"""`ringreduce top` beside running jobs: what each rank does, who is missing, who has ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from deadlines import SOON_S
from processes import completed
from ranks import Ranks, clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks
from watch_programs import waits_for_rank_1

from ringreduce.errors import InvalidArgumentError
from ringreduce.watch import processes
from ringreduce.watch.board import Board
from ringreduce.watch.figures import JobFigures
from ringreduce.watch.jobs import Job, Jobs, of_process


def pid(ranks: Ranks, rank: int = 0) -> int:
    found = ranks.procs[rank].pid
    assert found is not None
    return found


def look_until(board: Board, is_so: Callable[[JobFigures], bool]) -> JobFigures:
    """Looks at the board's only job again and again."""
    deadline = time.monotonic() + SOON_S
    while True:
        (job,) = board.look()
        if is_so(job):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.05)


@contextmanager
def job(what: str, size: int = 3) -> Iterator[tuple[Ranks, Board]]:
    with start_ranks(waits_for_rank_1, size, args=(what,)) as ranks:
        for rank in range(size):
            assert ranks.receive(rank) == "met"
        yield ranks, Board(pid(ranks))


def states(figures: JobFigures) -> list[str]:
    return [rank.state for rank in figures.ranks]


def test_who_waits_in_which_operation_for_whom() -> None:
    with job("allreduce") as (ranks, board):
        seen = look_until(board, lambda figures: all(figures.ranks[rank].missing for rank in (0, 2)))
        for rank in (0, 2):
            assert (seen.ranks[rank].state, seen.ranks[rank].operation) == ("waiting", "allreduce 'loss' #1")
            assert seen.ranks[rank].missing == (1,)
        assert seen.ranks[1].state in ("computing", "idle")
        assert seen.ranks[1].operation is None
        assert [rank.pid for rank in seen.ranks] == [pid(ranks, rank) for rank in range(3)]
        assert (seen.size, seen.hosts, seen.groups, seen.failure, seen.has_ended) == (3, 1, 0, "", False)
        assert [rank.counters["operations"] for rank in seen.ranks] == [2, 1, 2]
        assert [rank.counters["bytes_moved"] for rank in seen.ranks] == [4000] * 3
        # The sampler of the job sees it, too; the share is known once it has looked between two looks of the board.
        late = look_until(
            board, lambda figures: figures.ranks[1].counters["late_s"] > 0.1 and figures.ranks[1].late_share is not None
        ).ranks
        assert late[0].counters["waited_s"] > 0 == late[0].counters["late_s"]
        ranks.send(1)
        look_until(board, lambda figures: figures.has_ended)
        assert all(outcome.status == 0 for outcome in ranks.wait())


def test_waits_for_a_message_in_a_process_set_and_in_join() -> None:
    with job("message") as (ranks, board):
        seen = look_until(board, lambda figures: bool(figures.ranks[0].missing))
        assert (seen.ranks[0].operation, seen.ranks[0].missing) == ("recv from rank 1 #1", (1,))
        ranks.send(1)
        ranks.wait()
    with job("process set") as (ranks, board):
        ranks.send(1)
        for rank in range(3):
            assert ranks.receive(rank) == "added"
        seen = look_until(board, lambda figures: figures.ranks[0].missing == (1,))
        assert seen.ranks[0].operation == "allreduce 'pair' #0 of process set [0, 1]"
        ranks.send(1)
        ranks.wait()
    with job("join") as (ranks, board):
        look_until(board, lambda figures: [states(figures)[rank] for rank in (0, 2)] == ["joined"] * 2)
        ranks.send(1)
        ranks.wait()


def test_a_rank_that_is_stopped_killed_or_gone() -> None:
    with job("allreduce") as (ranks, board):
        ranks.kill(1, signal.SIGSTOP)
        look_until(board, lambda figures: states(figures)[1] == "stopped")
        ranks.kill(1, signal.SIGCONT)
        look_until(board, lambda figures: states(figures)[1] in ("computing", "idle"))
        ranks.kill(1)
        seen = look_until(board, lambda figures: states(figures)[1] == "dead" and bool(figures.failure))
        assert re.search(r"lost rank 1\b", seen.failure)
        ended = look_until(board, lambda figures: figures.has_ended)
        assert ended.failure == seen.failure
        assert board.look() == [ended]  # its last figures stay


def leaves() -> None:
    import ringreduce as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 0:
        hvd.shutdown()
    send_to_test(str(hvd.is_initialized()))
    receive_from_test()


def test_a_rank_that_has_left() -> None:
    with start_ranks(leaves, 2) as ranks:
        assert ranks.receive(0) == "False"
        board = Board(pid(ranks, 1))
        seen = look_until(board, lambda figures: states(figures)[0] == "left")
        assert seen.ranks[1].state in ("computing", "idle")
        for rank in range(2):
            ranks.send(rank)
        assert all(outcome.status == 0 for outcome in ranks.wait())


def rates() -> None:
    import ringreduce as hvd

    with hvd.init():
        send_to_test("met")
        x = np.ones(1 << 18, np.float32)
        while not hvd.allreduce(np.zeros(1), name="over")[0]:
            hvd.allreduce(x, name="gradients")
            time.sleep(0.005)


def bytes_per_pair(figures: JobFigures) -> float:
    """Bytes on the bus for each two operations of rank 0 between two looks; 0 without operations."""
    first = figures.ranks[0]
    return (first.bytes_per_s or 0) / (first.operations_per_s / 2) if first.operations_per_s else 0.0


def test_rates_and_shares_of_a_job_under_way() -> None:
    with start_ranks(rates, 2) as ranks:
        assert ranks.receive(0) == "met"
        board = Board(pid(ranks))
        # Each all-reduce of 1 MiB comes with one of 8 bytes. Two looks with one of them alone between are passed over.
        seen = look_until(board, lambda figures: 0.2 < bytes_per_pair(figures) / (1 << 20) < 5)
        first = seen.ranks[0]
        assert first.wire_bytes_per_s == 0
        assert first.cpu_share is not None
        seen = look_until(board, lambda figures: figures.ranks[0].waited_share is not None)
        assert all(0 <= (rank.waited_share or 0) <= 1 for rank in seen.ranks)


def test_the_command_prints_a_table_and_json() -> None:
    with job("allreduce") as (ranks, board):
        look_until(board, lambda figures: bool(figures.ranks[0].missing))
        printed = completed(top("--once", "--interval", "0.1", str(pid(ranks, 2))))
        title, headings, *rows = printed.stdout.splitlines()
        assert title.startswith(f"job {pid(ranks)}  ")
        assert re.search(r"  3 ranks  for \d+:\d\d$", title)
        assert headings.split() == ["RANK", "PID", "CPU", "OPS/S", "BUSBW", "WAITS", "LATE", "STATE"]
        assert rows[0].endswith("  waiting in allreduce 'loss' #1 for rank 1")
        found = json.loads(completed(top("--once", "--json", "--interval", "0.1", str(pid(ranks)))).stdout)["jobs"]
        (as_json,) = found
        assert as_json["ranks"][0]["missing"] == [1]
        assert as_json["ranks"][2]["counters"]["operations"] == 2
        # Whoever has started the ranks stands for the job, too, if it is the only one.
        assert of_process(Jobs().look(), pid(ranks)).size == 3


def top(*options: str) -> list[str]:
    return [sys.executable, "-m", "ringreduce", "top", *options]


def fails(*options: str) -> tuple[int, str]:
    done = subprocess.run(top(*options), env=clean_environment(), capture_output=True, text=True, timeout=SOON_S)
    return done.returncode, done.stdout + done.stderr


def test_what_is_no_job() -> None:
    status, text = fails("--once", str(os.getpid()))
    assert status == 2
    assert f"process {os.getpid()} is no rank of a job on this host, and has started none" in text
    assert "there is no process 4194305" in fails("--once", "4194305")[1]  # above the kernel's largest number
    assert fails("--json")[0] == 2
    assert "this is no terminal: give --once" in fails()[1]
    for interval in ("0", "nan", "x"):
        assert "from 0.05 to 3600 seconds" in fails("--once", "--interval", interval)[1]


def test_a_rank_that_has_started_another_job_stands_for_its_own() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        own, other = (cast(Job, SimpleNamespace(pid=one, pids={one})) for one in (os.getpid(), child.pid))
        assert of_process([own, other], own.pid) is own
        assert of_process([own, other], other.pid) is other
        with pytest.raises(InvalidArgumentError, match=f"several jobs: give one of {own.pid}, {other.pid}"):
            of_process([own, other], os.getppid())
        child.communicate(b"\n")


def test_memory_that_cannot_be_read_is_said_to_be_so() -> None:
    with_other_content = os.memfd_create("ringreduce.world.test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    jobs = Jobs()
    try:
        info = os.fstat(with_other_content)
        memory = processes.Memory(info.st_dev, info.st_ino)
        jobs.look()
        assert "its size can be changed" in jobs.unreadable[memory]
        os.truncate(with_other_content, 1 << 20)
        import fcntl

        fcntl.fcntl(with_other_content, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        jobs.look()
        assert "have not met yet" in jobs.unreadable[memory]
        os.pwrite(with_other_content, b"x" * 128, 0)
        jobs.look()
        why = f"process {os.getpid()}: this is no job's memory"
        assert jobs.unreadable[memory] == why
        with pytest.raises(InvalidArgumentError, match=f"^{why}$"):
            Board(os.getpid())
    finally:
        os.close(with_other_content)
    jobs.look()
    assert memory not in jobs.unreadable


def test_the_memory_is_mapped_for_reading_alone() -> None:
    with job("allreduce") as (ranks, board):
        board.look()
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        ours = [line for line in maps.splitlines() if "memfd:ringreduce." in line]
        assert ours
        assert all(line.split()[1].startswith("r--") for line in ours)
        ranks.send(1)
        ranks.wait()


def many_steps() -> tuple[int, int]:
    """Sums until the test says that it is enough: how many were right, and how many wrong."""
    import threading

    import ringreduce as hvd

    with hvd.init() as world:
        orders: list[str] = []
        if world.rank == 0:
            threading.Thread(target=lambda: orders.append(receive_from_test())).start()
        send_to_test("met")
        x = np.arange(3000, dtype=np.float64) * (world.rank + 1)
        right = wrong = step = 0
        while not hvd.allreduce(np.full(1, len(orders)), name="over", op=hvd.Sum)[0]:
            is_right = np.array_equal(hvd.allreduce(x + step, op=hvd.Sum), np.arange(3000) * 3.0 + 2 * step)
            right, wrong, step = right + is_right, wrong + (not is_right), step + 1
        return right, wrong


def test_a_job_that_is_watched_computes_the_same() -> None:
    with start_ranks(many_steps, 2) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "met"
        for _ in range(100):
            of_process(Jobs().look(), pid(ranks)).read()
        ranks.send(0)
        outcomes = ranks.wait()
    for outcome in outcomes:
        right, wrong = outcome.value
        assert right > 0 == wrong


def default_group(backend: str) -> int:
    """Makes torch's default group by the address that the test sends; returns this rank."""
    import torch.distributed as dist

    import ringreduce.torch.distributed  # noqa: F401, the backend

    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    dist.init_process_group(backend, init_method=receive_from_test(), rank=rank, world_size=size)
    return rank


def process_groups() -> None:
    import torch
    import torch.distributed as dist

    rank = default_group("ringreduce")
    group = dist.new_group([1, 0])
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3), group=group)
    send_to_test("two")
    if rank == 1:
        receive_from_test()
    dist.all_reduce(torch.ones(3), group=group)
    receive_from_test()
    dist.destroy_process_group()


def test_process_groups_of_torch_are_one_job(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with start_ranks(process_groups, 2) as ranks:
        for rank in range(2):
            ranks.send(rank, f"file://{tmp_path}/store")
        for rank in range(2):
            assert ranks.receive(rank) == "two"
        board = Board(pid(ranks))
        seen = look_until(board, lambda figures: figures.ranks[0].missing == (1,))
        assert seen.groups == 1
        assert [rank.late_share for rank in seen.ranks] == [None, None]  # each group sees its own waits only
        assert "late_s" not in seen.ranks[1].counters
        assert [rank.counters["operations"] for rank in seen.ranks] == [3, 2]
        ranks.send(1)
        for rank in range(2):
            ranks.send(rank)
        assert all(outcome.status == 0 for outcome in ranks.wait()), ranks.report()


def subgroup() -> None:
    """Ranks 1 and 2 of three are a group of ours; rank 1 waits for a message of rank 2."""
    import torch
    import torch.distributed as dist

    rank = default_group("gloo")
    group = dist.new_group([1, 2], backend="ringreduce")
    if rank != 0:
        dist.all_reduce(torch.ones(3), group=group)
    send_to_test("met")
    receive_from_test()
    if rank == 1:
        dist.recv(torch.ones(3), src=2, group=group)
    elif rank == 2:
        dist.send(torch.ones(3), dst=1, group=group)
    dist.destroy_process_group()


def test_ranks_of_a_subgroup_go_by_the_jobs_numbers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with start_ranks(subgroup, 3) as ranks:
        for rank in range(3):
            ranks.send(rank, f"file://{tmp_path}/store")
        for rank in range(3):
            assert ranks.receive(rank) == "met"
        ranks.send(1)
        board = Board(pid(ranks, 1))
        seen = look_until(board, lambda figures: bool(figures.ranks[0].missing))
        assert [rank.rank for rank in seen.ranks] == [1, 2]
        assert (seen.ranks[0].operation, seen.ranks[0].missing) == ("a message", (2,))
        for rank in (0, 2):
            ranks.send(rank)
        assert all(outcome.status == 0 for outcome in ranks.wait()), ranks.report()


def test_another_process_of_a_dead_ranks_number_is_no_rank() -> None:
    with job("allreduce") as (ranks, board):
        (watched,) = board.jobs
        for context in watched._contexts:
            context.started[pid(ranks, 1)] -= 1.0  # as if that process had been started later than the rank was
        assert states(board.look()[0])[1] == "dead"
        ranks.send(1)
        ranks.wait()


def test_a_rank_whose_process_is_not_found_is_not_said_to_be_dead() -> None:
    with job("allreduce") as (ranks, board):
        (watched,) = board.jobs
        for context in watched._contexts:  # as where /proc hides the process from this user
            context.inner = {own: one for own, one in context.inner.items() if one != pid(ranks, 1)}
        (seen,) = board.look()
        assert states(seen)[1] == "unseen"
        assert seen.ranks[1].pid is None
        assert not seen.has_ended
        ranks.send(1)
        ranks.wait()


def forks() -> bool:
    import ringreduce as hvd

    hvd.init()
    child = os.fork()
    if child == 0:
        os._exit(int(bool(processes.memories(os.getpid()))))
    held = bool(processes.memories(os.getpid()))
    _, status = os.waitpid(child, 0)
    hvd.shutdown()
    return held and os.waitstatus_to_exitcode(status) == 0 and not processes.memories(os.getpid())


def test_a_forked_child_and_a_rank_after_shutdown_do_not_hold_the_memory() -> None:
    assert run_ranks(forks, 2) == [True] * 2


def registers_and_forks() -> None:
    import ringreduce as hvd

    with hvd.init():
        memory = hvd.symmetric_empty(1000, np.float32)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        send_to_test(str(memory.size))
        receive_from_test()


def test_other_memory_files_of_a_job_are_no_jobs() -> None:
    with start_ranks(registers_and_forks, 2) as ranks:
        for rank in range(2):
            assert ranks.receive(rank) == "1000"
        held = processes.memories(pid(ranks))
        assert len(held) == 1
        jobs = Jobs()
        jobs.look()
        assert not held.keys() & jobs.unreadable.keys()
        for rank in range(2):
            ranks.send(rank)
        ranks.wait()


def test_no_rank_of_another_user_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert os.getpid() not in set(processes.processes())
    with pytest.raises(InvalidArgumentError, match="belongs to another user"):
        of_process([], os.getpid())
