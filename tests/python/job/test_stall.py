"""Ranks that are late: stopped, slow, gone for good. Who waits for them is told who, and in time."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from processes import all_asleep
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce.job.failure import failure_report


def caught(call: Callable[[], Any]) -> str:
    try:
        return f"no error but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# --- a rank that is stopped -------------------------------------------------------------------------------------------


KINDS = ("small", "named", "private", "registered", "messages")


def at_work() -> Any:
    """For every kind: steps until one fails, then two more calls. The texts, and when the first came."""
    import ringreduce as rr

    told = []
    for kind in KINDS:
        rr.init()
        x: Any = rr.symmetric_empty(1 << 20) if kind == "registered" else np.ones(1 << 20, np.float32)
        step = stepper(kind, x)
        step()
        send_to_test("at work")
        text = ""
        while not text:
            try:
                step()
            except rr.Error as error:
                text = f"{type(error).__name__}: {error}"
        moment = time.monotonic()
        send_to_test("failed")
        texts = [text, caught(step), caught(lambda: rr.allreduce(1.0))]
        begin = time.monotonic()
        rr.shutdown()
        told.append((moment, texts, time.monotonic() - begin))
    return told


def stepper(kind: str, x: Any) -> Callable[[], Any]:
    import ringreduce as rr

    y = x.copy()
    x[:] = 0

    def messages() -> None:
        for handle in (rr.send_async(x, (rr.rank() + 1) % 3), rr.recv_async(y, (rr.rank() - 1) % 3)):
            handle.wait()

    def named() -> None:
        for handle in [rr.allreduce_async(x[:5000], name=f"t{i}") for i in range(4)]:
            handle.wait()

    return {
        "small": lambda: rr.allreduce(np.ones(2)),
        "named": named,
        "private": lambda: rr.allreduce_(x),
        "registered": lambda: rr.allreduce_(x),
        "messages": messages,
    }[kind]


def test_a_stopped_rank_times_out() -> None:
    stops = []
    with start_ranks(at_work, 3, env={"RINGREDUCE_TIMEOUT": "2"}) as job:
        for kind in KINDS:
            assert [job.receive(rank) for rank in range(3)] == ["at work"] * 3, kind
            stops.append(job.kill(1, signal.SIGSTOP))
            assert [job.receive(rank) for rank in (0, 2)] == ["failed"] * 2, kind
            job.kill(1, signal.SIGCONT)
            assert job.receive(1) == "failed", kind
        outcomes = job.wait()
        assert all(outcome.value is not None for outcome in outcomes), job.report()
    for outcome in outcomes:
        for kind, stopped, (moment, texts, leaving_s) in zip(KINDS, stops, outcome.value, strict=True):
            assert all(text.startswith(f"TimeoutError: [ringreduce rank {outcome.rank}/3 on ") for text in texts), texts
            found = texts[0][texts[0].rindex("[ringreduce rank ") :]  # by one of the ranks
            assert all(text.endswith(found) for text in texts), texts
            assert "RINGREDUCE_TIMEOUT=2.0 s" in texts[0]
            # Messages go round: rank 0 waits for rank 2, which waits for rank 1.
            assert re.search(r"rank\(s\):? 1\b", texts[0]) or kind == "messages", texts
            assert leaving_s < SOON_S
            assert moment - stopped < SOON_S


def suspended() -> float:
    import ringreduce as rr

    rr.init()
    rr.barrier()
    send_to_test(str(os.getpid()))
    if rr.rank() == 1:
        receive_from_test()
    return float(rr.allreduce(np.full(5000, 1.0 + rr.rank()), op=rr.Sum)[0])


def test_a_job_that_is_suspended_as_a_whole_goes_on() -> None:
    """As a batch system does, for longer than the limit of an operation, which counts the time that ranks run."""
    with start_ranks(suspended, 2, env={"RINGREDUCE_TIMEOUT": "8"}) as job:
        for pid in [job.receive(rank) for rank in range(2)]:
            all_asleep(int(pid))  # rank 0 in its call
        for signum in (signal.SIGSTOP, signal.SIGCONT):
            for rank in range(2):
                job.kill(rank, signum)
            if signum == signal.SIGSTOP:
                time.sleep(10)
        job.send(1, "go")
        assert [outcome.value for outcome in job.wait()] == [3.0, 3.0], job.report()


# --- a rank that is late ----------------------------------------------------------------------------------------------


LATE = ("small", "large", "unnamed", "polled")


def late() -> list[float]:
    import ringreduce as rr

    totals = []
    with rr.init() as world:
        for kind in LATE:
            x = np.ones(1 << 15 if kind == "large" else 2)
            if world.rank == 1:
                assert receive_from_test() == kind
            if kind == "polled":
                handle = rr.allreduce_async(x, name=kind, op=rr.Sum)
                while not handle.done():
                    time.sleep(0.01)
                totals.append(float(handle.wait()[0]))
            else:
                totals.append(float(rr.allreduce(x, name=None if kind == "unnamed" else kind, op=rr.Sum)[0]))
    return totals


def test_one_warning_names_the_operation_and_who_is_missing() -> None:
    with start_ranks(late, 3, env={"RINGREDUCE_STALL_WARNING": "0.2"}) as job:
        for number, kind in enumerate(LATE, 1):
            job.wait_output(0, "waiting", number)
            time.sleep(0.3)  # time for a second warning, which must not come
            job.send(1, kind)
        outcomes = job.wait()
        assert [outcome.value for outcome in outcomes] == [[3.0] * 4] * 3, job.report()
    warnings = [line for line in outcomes[0].output.splitlines() if "waiting" in line]
    assert len(warnings) == len(LATE), warnings
    for kind, warning in zip(LATE, warnings, strict=True):
        name = "" if kind == "unnamed" else f" '{kind}'"
        what = rf"ringreduce warning \[rank 0\] .*allreduce{name} #\d+\] has been waiting for \d\.\d s for "
        assert re.search(what + r"rank\(s\) 1; the other ranks have submitted it\. Rank 1 ", warning), warning
    assert "waiting" not in outcomes[1].output
    assert "waiting" not in outcomes[2].output  # which waits too: rank 0 says it for both


# --- where a late rank stands -----------------------------------------------------------------------------------------


def loops() -> None:
    import threading

    told: list[object] = []
    threading.Thread(target=lambda: told.append(receive_from_test())).start()
    while not told:
        pass


def waits_for_input() -> None:
    import queue
    import threading

    inputs: queue.Queue[object] = queue.Queue()
    threading.Thread(target=lambda: inputs.put(receive_from_test())).start()
    inputs.get()


def keeps_the_lock(fifo: str) -> None:
    """In a function of C that blocks with the GIL."""
    import ctypes
    import os

    descriptor = os.open(fifo, os.O_RDWR)
    ctypes.PyDLL(None).read(descriptor, ctypes.create_string_buffer(1), ctypes.c_size_t(1))
    os.close(descriptor)


def stands(how: str, fifo: str) -> str:
    import ringreduce as rr

    with rr.init() as world:
        rr.allreduce(np.ones(2), name="before")
        if world.rank == 1:
            send_to_test("late")
            if how == "loops":
                loops()
            elif how == "keeps the lock":
                keeps_the_lock(fifo)
            else:
                waits_for_input()
        return caught(lambda: float(rr.allreduce(np.ones(2), name="after", op=rr.Sum)[0]))


PROCESS = r"its process \d+ on \S+ "
STANDS = {
    "loops": rf"{PROCESS}uses \d+ % of a core.*; its main thread is at test_stall\.py:\d+ in loops: "
    r"(while not told:|pass), called from test_stall\.py:\d+ in stands",
    "waits for input": rf"{PROCESS}uses \d+ % of a core.*; its main thread is at test_stall\.py:\d+ in "
    r"waits_for_input: inputs\.get\(\) \(inside (threading|queue)\.py:\d+ in \w+\), called from",
    "keeps the lock": rf"{PROCESS}runs, but holds Python's lock \(the GIL\) in a function of an extension\.",
}


@pytest.mark.parametrize("how", STANDS)
def test_the_warning_says_where_the_late_rank_stands(how: str, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with start_ranks(stands, 3, args=(how, str(fifo)), env={"RINGREDUCE_STALL_WARNING": "1"}) as job:
        assert job.receive(1) == "late"
        job.wait_output(0, "has been waiting")
        if how == "keeps the lock":
            with os.fdopen(os.open(fifo, os.O_RDWR), "wb", buffering=0) as opened:
                opened.write(b"x")
                outcomes = job.wait()
        else:
            job.send(1)
            outcomes = job.wait()
    assert [outcome.value for outcome in outcomes] == ["no error but 3.0"] * 3
    assert re.search(rf"\. Rank 1 called allreduce 'before' #0 last; {STANDS[how]}", outcomes[0].output), outcomes[0]


def test_the_warning_says_that_a_late_rank_is_stopped() -> None:
    with start_ranks(stands, 3, args=("waits for input", ""), env={"RINGREDUCE_STALL_WARNING": "1"}) as job:
        assert job.receive(1) == "late"
        job.kill(1, signal.SIGSTOP)
        job.wait_output(0, "has been waiting")
        job.kill(1, signal.SIGCONT)
        job.send(1)
        outcomes = job.wait()
    assert [outcome.value for outcome in outcomes] == ["no error but 3.0"] * 3
    stopped = (
        r"; the other ranks have submitted it\. The process \d+ of rank 1 on \S+ is stopped, by SIGSTOP or the like\."
    )
    assert re.search(stopped, outcomes[0].output), outcomes[0]


def test_a_timeout_says_where_the_late_rank_stands() -> None:
    with start_ranks(stands, 3, args=("loops", ""), env={"RINGREDUCE_TIMEOUT": "4"}) as job:
        assert job.receive(1) == "late"
        assert job.wait_first() in (0, 2), job.report()
        job.send(1)
        outcomes = job.wait()
    for outcome in outcomes:
        assert outcome.value.startswith("TimeoutError: "), outcome
        assert re.search(rf"missing rank\(s\): 1\. Rank 1 called .*{STANDS['loops']}", outcome.value), outcome


def calls_many() -> list[float]:
    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 1:
            receive_from_test()
        handles = [rr.allreduce_async(np.ones(2000), name=f"gradient {i}", op=rr.Sum) for i in range(50)]
        return [float(handle.wait()[0]) for handle in handles]


def test_one_warning_for_all_that_wait_for_the_same_rank() -> None:
    with start_ranks(calls_many, 2, env={"RINGREDUCE_STALL_WARNING": "0.5"}) as job:
        job.wait_output(0, "has been waiting")
        time.sleep(1)  # time for more of them, which must not come
        job.send(1)
        outcomes = job.wait()
    assert [outcome.value for outcome in outcomes] == [[2.0] * 50] * 2
    assert outcomes[0].output.count("has been waiting") == 1, outcomes[0]


def polls_until_it_fails() -> str:
    import ringreduce as rr

    rr.init()
    if rr.rank() == 1:
        return receive_from_test()
    handle = rr.allreduce_async(np.ones(2), name="alone")
    while not handle.done():
        time.sleep(0.01)
    return caught(handle.wait)


def test_polling_runs_into_the_timeout_too() -> None:
    with start_ranks(polls_until_it_fails, 2, env={"RINGREDUCE_TIMEOUT": "0.5"}) as job:
        assert job.wait_first() == 0, job.report()
        job.send(1, "enough")
        first, second = job.wait()
    assert first.value.startswith("TimeoutError: "), first
    assert "allreduce 'alone' #" in first.value
    assert "missing rank(s): 1" in first.value
    assert second.value == "enough"


def ran_out() -> list[Any]:
    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 1:
            receive_from_test()
        x, y = np.ones(3), np.ones(1 << 16)
        handles = [rr.allreduce_async(x, name="small", op=rr.Sum), rr.allreduce_async(y, name="large", op=rr.Sum)]
        if world.rank == 0:
            texts = [caught(lambda handle=handle: handle.wait(0.05)) for handle in handles for _ in range(2)]  # type: ignore[misc]
            send_to_test("ran out")
            assert all("still pending" in text and text.startswith("TimeoutError") for text in texts), texts
            handles.append(rr.allreduce_async(x, name="another", op=rr.Sum))
        else:
            handles.append(rr.allreduce_async(x, name="another", op=rr.Sum))
        return [float(handle.wait(30)[0]) for handle in handles]


def test_a_wait_that_runs_out_changes_nothing() -> None:
    with start_ranks(ran_out, 2) as job:
        assert job.receive(0) == "ran out"
        job.send(1)
        assert [outcome.value for outcome in job.wait()] == [[2.0] * 3] * 2


# --- all ranks wait for each other ------------------------------------------------------------------------------------


def two_threads() -> list[str]:
    """Each rank waits in an operation that the other one has not called, and has a second thread that might call it."""
    import threading

    import ringreduce as rr

    rr.init()
    second = threading.Thread(target=rr.barrier)
    second.start()
    second.join()
    rr.allreduce(np.ones(2), name="both")
    return [caught(lambda: rr.allreduce(np.ones(2), name=f"rank {rr.rank()}")), caught(rr.barrier)]


def test_ranks_of_several_threads_that_wait_for_each_other() -> None:
    with start_ranks(two_threads, 2, env={"RINGREDUCE_VERDICT": "1"}) as job:
        for outcome in job.wait():
            first, second = outcome.value
            assert first.startswith("MismatchError: every rank waits and none has called anything for 1 s"), first
            assert "Rank 0 waits in allreduce 'rank 0' #2 for rank 1 and called allreduce 'rank 0' #2 last" in first
            assert "Rank 1 waits in allreduce 'rank 1' #2 for rank 0 and called" in first
            assert second == first


# --- a rank that has left ---------------------------------------------------------------------------------------------


def leaves(how: str) -> list[str]:
    import sys

    import ringreduce as rr

    rr.init()
    pair = rr.add_process_set([0, 2])
    rr.barrier()
    if rr.rank() == 1:
        receive_from_test()
        if how == "exit":
            sys.exit(0)
        rr.shutdown()
        return [str(rr.is_initialized())]
    handle = rr.allreduce_async(np.ones(1 << 15), name="needs rank 1")
    send_to_test("waiting")
    texts = [caught(handle.wait), caught(lambda: rr.allreduce(1.0)), caught(lambda: rr.recv(np.ones(2), 1))]
    return [*texts, str(rr.allreduce(np.ones(2), op=rr.Sum, process_set=pair)[0])]


@pytest.mark.parametrize("how", ["exit", "shutdown"])
def test_a_rank_that_leaves_is_missed_by_who_needs_it(how: str) -> None:
    with start_ranks(leaves, 3, args=(how,)) as job:
        assert [job.receive(rank) for rank in (0, 2)] == ["waiting"] * 2
        job.send(1)
        outcomes = job.wait()
        for rank in (0, 2):
            texts = outcomes[rank].value
            assert texts is not None, job.report()
            assert texts[:3] == [texts[0]] * 3
            assert texts[0].startswith("ShutdownError: Horovod has been shut down."), texts
            assert "rank 1 called shutdown() or ended; " in texts[0]
            assert "'needs rank 1'" in texts[0]
            assert texts[3] == "2.0"  # a set without that rank goes on


def leaves_when_done() -> list[float]:
    """Rank 1 shuts down as soon as its own part is done; the others have the result all the same."""
    import ringreduce as rr

    totals = []
    for count in (2, 1000, 1 << 20):
        with rr.init() as world:
            handle = rr.allreduce_async(np.ones(count), name="last", op=rr.Sum)
            if world.rank != 1:
                while not handle.done():
                    time.sleep(0.002)
            totals.append(float(handle.wait()[-1]))
    return totals


def test_what_is_done_needs_nobody() -> None:
    assert run_ranks(leaves_when_done, 3) == [[3.0] * 3] * 3


# --- a report of the failure ------------------------------------------------------------------------------------------


def fails() -> str:
    import ringreduce as rr

    rr.init()
    rr.allreduce(np.ones(2), name="before")
    if rr.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    text = caught(lambda: rr.allreduce(np.ones(2), name="after"))
    rr.shutdown()
    return text


def test_each_survivor_leaves_a_report_of_the_failure(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "reports"
    with start_ranks(fails, 3, env={"RINGREDUCE_FAILURE_REPORTS": str(folder)}) as job:
        outcomes = job.wait()
    reports = {report["rank"]: report for report in map(json.loads, map(Path.read_text, folder.iterdir()))}
    assert sorted(reports) == [0, 2]
    for rank, report in reports.items():
        place, _, lost = outcomes[rank].value.partition("] ")
        assert place.startswith(f"PeerLostError: [ringreduce rank {rank}/3 on "), place
        assert place.endswith(", allreduce 'after' #1"), place
        assert lost.startswith("lost rank 1: ")
        assert report["failure"].endswith(f"] {lost}")
        assert report["size"] == 3
        assert (report["group"], report["ranks"]) == (None, [0, 1, 2])
        assert report["pid"] == job.procs[rank].pid
        assert report["calls"] == "called allreduce 'after' #1 last"
        assert report["stats"]["operations"] == 2
        assert report["settings"]["RINGREDUCE_FAILURE_REPORTS"] == str(folder)
        assert len(report["waited_s"]) == len(report["late_s"]) == 3


class FailedContext:
    """What a report is made of, of a context that has failed."""

    def __init__(self, failure: str) -> None:
        self.failure = lambda: failure

    def calls(self) -> str:
        return "has called nothing"

    def times(self) -> tuple[float, list[float], list[float]]:
        return 0.0, [], []

    def stats(self) -> dict[str, int]:
        return {}

    def settings(self) -> list[tuple[str, str, str]]:
        return []


def test_a_report_replaces_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_FAILURE_REPORTS", str(tmp_path))
    moment = time.gmtime(0)
    monkeypatch.setattr(failure_report.time, "gmtime", lambda: moment)
    stem = str(tmp_path / "ringreduce-19700101-000000-rank-4")
    Path(f"{stem}-2.json").write_text("taken")
    Path(f"{stem}-4.json.part").write_text("of another process, which writes it")
    names = [f"{stem}.json", f"{stem}-3.json", f"{stem}-5.json"]
    for number, name in enumerate(names):
        context: Any = FailedContext(f"failure {number}")
        failure_report.write(context, 4, 8, f"group {number}", [number, 4])
        report = json.loads(Path(name).read_text())
        assert report["failure"] == f"failure {number}"
        assert (report["rank"], report["size"]) == (4, 8)
        assert (report["group"], report["ranks"]) == (f"group {number}", [number, 4])
    assert Path(f"{stem}-2.json").read_text() == "taken"
    assert json.loads(Path(names[0]).read_text())["failure"] == "failure 0"
    assert {str(path) for path in tmp_path.iterdir()} == {*names, f"{stem}-2.json", f"{stem}-4.json.part"}


def test_no_report_where_nothing_has_failed_and_none_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    assert run_ranks(what_is_done_needs_nobody, 2, env={"RINGREDUCE_FAILURE_REPORTS": str(folder)}) == [1.0] * 2
    assert not folder.exists()
    folder.touch()
    with start_ranks(fails, 2, env={"RINGREDUCE_FAILURE_REPORTS": str(folder)}) as job:
        outcome = job.wait()[0]
    assert outcome.value.startswith("PeerLostError: "), outcome
    assert f"no report of the failure, RINGREDUCE_FAILURE_REPORTS={folder}: " in outcome.output


def what_is_done_needs_nobody() -> float:
    import ringreduce as rr

    with rr.init():
        return float(rr.allreduce(np.ones(2))[0])
