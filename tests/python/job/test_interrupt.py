"""Ctrl-C in blocked calls, and processes that end while something is pending: nothing hangs, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from deadlines import HANG_S, SOON_S
from interrupts import check_interrupted_submission, interrupt_rank_0, interrupted_while_submitting
from ranks import clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce.collectives.handles import Works

RINGRUN = [sys.executable, "-m", "ringreduce.launch.ringrun"]


def blocked(where: str) -> Any:
    """Rank 0 is interrupted while it waits for rank 1; then both go on, and nothing touches rank 0's array any more."""
    import ringreduce as rr

    with rr.init() as world:
        x = np.full(1 << 15 if where.startswith("large") else 3, float(world.rank))
        y = np.empty(3)
        calls: dict[str, Callable[[], Any]] = {
            "small": lambda: rr.allreduce(x, op=rr.Sum),
            "small named": lambda: rr.allreduce(x, op=rr.Sum, name="small"),
            "large": lambda: rr.allreduce(x, op=rr.Sum),
            "large in place": lambda: rr.allreduce_(x, op=rr.Sum),
            "large reducescatter": lambda: rr.reducescatter(x, op=rr.Sum),
            "large grouped": lambda: rr.grouped_reducescatter([x, x], op=rr.Sum, name="grouped"),
            "large broadcast": lambda: rr.broadcast(x, 0),
            "large broadcast_": lambda: rr.broadcast_(x, 1),
            "large wait": lambda: rr.allreduce_async(x, op=rr.Sum, name="large").wait(),
            "barrier": rr.barrier,
            "recv": lambda: rr.recv(y, 1) if world.rank == 0 else rr.send(y, 0),
            "large send": lambda: rr.send(x, 1) if world.rank == 0 else rr.recv(x, 0),
        }
        raised, withdrawn = None, ""
        if world.rank == 0:
            send_to_test("blocking")
            try:
                calls[where]()
            except KeyboardInterrupt:
                raised = time.monotonic()
            x[:] = y[:] = 7.0
            send_to_test("interrupted")
        else:
            receive_from_test()
            try:
                calls[where]()  # of a small one rank 0 has given a copy, and what has a handle stands
            except rr.MismatchError as error:
                withdrawn = str(error)
        result = [float(rr.allreduce(np.ones(2), op=rr.Sum)[0]) for _ in range(300)][-1]
        if world.rank == 0:
            assert set(x) == set(y) == {7.0}
        return raised, result, withdrawn


WITHDRAWN = ["large", "large in place", "large reducescatter", "large grouped", "large broadcast", "large broadcast_"]


@pytest.mark.parametrize("where", ["small", "small named", *WITHDRAWN, "large wait", "barrier", "recv", "large send"])
def test_ctrl_c_in_a_blocked_call(where: str) -> None:
    with start_ranks(blocked, 2, args=(where,)) as job:
        sent = interrupt_rank_0(job)
        first, second = job.wait()
        assert first.value is not None, job.report()
        assert second.value is not None, job.report()
    assert first.value[0] - sent < SOON_S
    assert first.value[1] == second.value[1] == 2.0
    assert ("rank 0 has withdrawn this operation: an exception" in second.value[2]) == (where in WITHDRAWN)


def blocked_in_submission(what: str) -> tuple[str, list[float]]:
    import ringreduce as rr

    calls: dict[str, Callable[[list[Any]], Any]] = {
        "allgather": rr.grouped_allgather,
        "reducescatter": lambda tensors: rr.grouped_reducescatter(tensors, op=rr.Sum),
    }
    return interrupted_while_submitting(calls[what], lambda value: np.full(400, value, np.float32))


@pytest.mark.parametrize(("what", "factor"), [("allgather", 1.0), ("reducescatter", 2.0)])
def test_ctrl_c_while_a_grouped_call_submits(what: str, factor: float) -> None:
    """What was submitted is withdrawn: the other rank gets an error, and nothing touches the arrays any more."""
    with start_ranks(blocked_in_submission, 2, args=(what,)) as job:
        check_interrupted_submission(job, factor)


def raises_in_a_handler(what: str) -> tuple[str, str]:
    """Rank 0's signal handler raises an error of the class that operations may fail with, too."""
    import ringreduce as rr

    class AlarmError(RuntimeError):
        pass

    def raise_alarm(*_: Any) -> None:
        raise AlarmError("alarm")

    signal.signal(signal.SIGINT, raise_alarm)
    x = np.ones(3000)
    calls: dict[str, Callable[[], Any]] = {
        "one": lambda: rr.allgather(x),
        "allgather": lambda: rr.grouped_allgather([x, x]),
        "reducescatter": lambda: rr.grouped_reducescatter([x, x]),
    }
    raised = ""
    with rr.init() as world:
        if world.rank == 0:
            send_to_test("blocking")
        else:
            receive_from_test()
        try:
            calls[what]()
        except (AlarmError, rr.MismatchError) as error:
            raised = type(error).__name__
        if world.rank == 0:
            send_to_test("interrupted")
        return raised, str(rr.allreduce(np.ones(2), op=rr.Sum)[0])


@pytest.mark.parametrize("what", ["one", "allgather", "reducescatter"])
def test_what_a_handler_raises_ends_the_wait_for_several_operations(what: str) -> None:
    with start_ranks(raises_in_a_handler, 2, args=(what,)) as job:
        interrupt_rank_0(job)
        assert [outcome.value for outcome in job.wait()] == [("AlarmError", "2.0"), ("MismatchError", "2.0")]


class Interrupted:
    """An operation whose end a second signal interrupts."""

    def __init__(self, withdrawn: list[object]) -> None:
        self.withdrawn = withdrawn

    def withdraw(self) -> None:
        self.withdrawn.append(self)
        raise KeyboardInterrupt(len(self.withdrawn))


def test_a_second_ctrl_c_keeps_no_operation_from_being_withdrawn() -> None:
    withdrawn: list[object] = []
    each = [Interrupted(withdrawn) for _ in range(3)]
    with pytest.raises(KeyboardInterrupt, match="1"):
        Works(each).withdraw()
    assert withdrawn == each


def ends_with_pending_work(how: str) -> None:
    import threading

    import ringreduce as rr

    rr.init()
    if rr.rank() == 1:
        with suppress(rr.Error):
            rr.allreduce(np.ones(1 << 15), name="never")
        return
    handles = [rr.allreduce_async(np.ones(size), name=f"pending {size}") for size in (3, 1 << 15)]
    handles.append(rr.recv_async(np.empty(3), 1))
    if how == "thread":
        started = threading.Event()

        def waits() -> None:
            started.set()
            rr.allreduce(np.ones(3), name="in a daemon thread")

        threading.Thread(target=waits, daemon=True).start()
        started.wait()
        with suppress(rr.TimeoutError):
            handles[0].wait(0.1)  # the thread is in its call by now
    if how == "raise":
        raise ValueError("the script failed")


@pytest.mark.parametrize("how", ["end", "thread", "raise"])
def test_a_process_ends_with_work_pending(how: str) -> None:
    with start_ranks(ends_with_pending_work, 2, args=(how,)) as job:
        first, second = job.wait()
        assert first.status == (1 if how == "raise" else 0), job.report()
        assert second.status == 0, job.report()


def ends_while_threads_keep_calling() -> None:
    import threading

    import ringreduce as rr

    rr.init()
    calling = threading.Barrier(5)

    def calls(number: int) -> None:
        calling.wait()
        while True:
            with suppress(rr.Error):
                rr.allreduce(np.ones(3 if number % 2 else 1 << 12), name=f"daemon {number}")

    for number in range(4):
        threading.Thread(target=calls, args=(number,), daemon=True).start()
    calling.wait()
    rr.barrier()


def test_a_process_ends_while_its_threads_keep_calling() -> None:
    """A thread that wants the GIL back from an interpreter that is ending would end the process with SIGABRT."""
    for _ in range(5):
        with start_ranks(ends_while_threads_keep_calling, 2) as job:
            assert [rank.status for rank in job.wait()] == [0, 0], job.report()


SCRIPT = """
import sys, time
import numpy as np
import ringreduce as rr

rr.init()
if rr.rank() == 1 and sys.argv[1] == "raise":
    raise ValueError("the loss is not finite")
print("blocking", flush=True)
try:
    while True:
        rr.allreduce(np.ones(3), name="step")
        while rr.rank() == 1 and sys.argv[1] == "block":
            time.sleep(0.1)  # a signal after Python's last look at signals and before the system call ends no sleep
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
except rr.Error as error:
    print(f"rank {rr.rank()}: {type(error).__name__}", flush=True)
    sys.exit(3)
"""


def start_job(how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RINGRUN, "-np", "3", sys.executable, "-c", SCRIPT, how],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_exception_on_one_rank_ends_the_job() -> None:
    with start_job("raise") as job:
        out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == 1, err
    assert "ValueError: the loss is not finite" in err
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == [
        "rank 0: PeerLostError",
        "rank 2: PeerLostError",
    ]


def test_ctrl_c_on_ringrun_ends_every_rank() -> None:
    with start_job("block") as job:
        assert job.stdout is not None
        assert [job.stdout.readline() for _ in range(3)] == ["blocking\n"] * 3
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as children:
            pids = [int(pid) for pid in children.read().split()]
        sent = time.monotonic()
        job.send_signal(signal.SIGINT)
        out, err = job.communicate(timeout=HANG_S)
    assert job.returncode == 130, (out, err)
    assert time.monotonic() - sent < SOON_S
    assert "interrupted" in out
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def threads_that_take_signals() -> set[str]:
    """Those that init() and a call have started, and that the kernel may deliver SIGINT or SIGTERM to."""
    before = set(os.listdir("/proc/self/task"))
    import ringreduce as rr

    with rr.init():
        rr.allreduce(np.ones(3), name="loss")
        started = set(os.listdir("/proc/self/task")) - before
        assert started
        wanted = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            wanted |= 1 << (number - 1)
        taking = set()
        deadline = time.monotonic() + HANG_S
        for task in started:
            blocked = ~0
            while blocked & 1 << (signal.SIGSEGV - 1):  # a thread that is starting blocks everything, for a moment
                assert time.monotonic() < deadline, "a crash would go unreported by faulthandler"
                with open(f"/proc/self/task/{task}/status") as file:
                    blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
            if blocked & wanted != wanted:
                taking.add(task)
        return taking


def test_signals_go_to_the_users_threads() -> None:
    """Python notices a signal of another thread only once its main thread comes out of time.sleep() or the like."""
    assert run_ranks(threads_that_take_signals, 2) == [set(), set()]


def forgets_to_leave() -> float:
    import ringreduce as rr

    rr.init()
    return float(rr.allreduce(np.ones(2), op=rr.Sum)[0])


def test_no_shutdown_is_needed() -> None:
    assert run_ranks(forgets_to_leave, 2, timeout_s=SOON_S) == [2.0] * 2
