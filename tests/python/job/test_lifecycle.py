"""The life of a job: waiting, shutting down, interrupts, forks, starting anew, and the variables it reads."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from deadlines import SOON_S
from processes import asleep, completed
from ranks import clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks

import ringreduce
from ringreduce import basics, config, state
from ringreduce.errors import NotInitializedError
from ringreduce.job import environment, inheritance, starter


def caught(call: Any) -> str:
    """The class and text of what a call raises."""
    try:
        return f"no error but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(("hosts", "same"), [([0, 0, 0, 3, 3, 5], False), ([0, 0, 2, 2], True), ([0, 0], True)])
def test_all_ranks_say_alike_whether_hosts_have_as_many(
    hosts: list[int], same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "current", SimpleNamespace(hosts=hosts))
    assert ringreduce.is_homogeneous() is same


def is_interrupted(call: str, step: str) -> None:
    import ringreduce as rr

    rr.init()
    if call == "init":
        rr.shutdown()
    module, name = step.split(".")
    interrupts = mock.patch.object(getattr(basics, module), name, side_effect=KeyboardInterrupt)
    with interrupts, pytest.raises(KeyboardInterrupt):
        getattr(rr, call)()
    assert not rr.is_initialized()
    with pytest.raises(rr.NotInitializedError):
        rr.allreduce(1.0)
    rr.init()
    assert rr.allreduce(1.0, op=rr.Sum) == rr.size()
    rr.shutdown()


@pytest.mark.parametrize(
    ("call", "step"),
    [
        ("shutdown", "inheritance.unmark"),
        ("shutdown", "_core.framework_end"),
        ("shutdown", "failure_report.write"),
        ("shutdown", "recording.end"),
        ("init", "shutdown_cause.begin"),
        ("init", "uncaught.tell_by"),
    ],
)
def test_an_interrupt_within_init_or_shutdown_leaves_no_half_of_a_job(call: str, step: str) -> None:
    run_ranks(is_interrupted, 2, args=(call, step))


def wait_with_a_timeout() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 0:
            handle = rr.allreduce_async(np.ones(3), name="late", op=rr.Sum)
            begin = time.monotonic()
            seen = [caught(lambda: handle.wait(0.2)), str(handle.done())]
            assert 0.15 < time.monotonic() - begin < SOON_S
            send_to_test("ran out")
            return [*seen, str(handle.result[0])]
        receive_from_test()
        return [str(rr.allreduce(np.ones(3), name="late", op=rr.Sum)[0])]


def test_wait_with_a_timeout_leaves_the_operation_pending() -> None:
    with start_ranks(wait_with_a_timeout, 2) as job:
        assert job.receive(0) == "ran out"
        job.send(1)
        first, second = (outcome.value for outcome in job.wait())
    assert first[0].startswith("TimeoutError: [ringreduce rank 0/2")
    assert first[0].endswith(", allreduce 'late' #0] is still pending after 0.2 s; missing rank(s): 1")
    assert first[1:] == ["False", "2.0"]
    assert second == ["2.0"]


def goes_on_after_a_timeout() -> list[str]:
    import ringreduce as rr

    with rr.init() as world:
        if world.rank == 1:
            names = ["second", "first"]
            return [str(rr.allreduce(np.ones(30_000), name=name, op=rr.Sum)[0]) for name in names]
        receive_from_test()
        handle = rr.allreduce_async(np.ones(30_000), name="first", op=rr.Sum)
        seen = caught(lambda: handle.wait(1.0))
        return [seen, str(rr.allreduce(np.ones(30_000), name="second", op=rr.Sum)[0]), str(handle.wait()[0])]


def test_a_wait_with_a_limit_is_no_deadlock() -> None:
    with start_ranks(goes_on_after_a_timeout, 2) as job:
        asleep(job.procs[1].pid)
        job.send(0)
        first, second = (outcome.value for outcome in job.wait())
    assert first[0].startswith("TimeoutError: "), first
    assert " is still pending after 1.0 s" in first[0], first
    assert first[1:] == second == ["2.0", "2.0"]


def waits_for_a_child_process() -> float:
    """Rank 0: a thread calls once a child process has sent an item, while the main thread is in a barrier. No thread of
    Python's own helps the child here, which would count as one that may call."""
    import multiprocessing
    import threading

    import ringreduce as rr

    context = multiprocessing.get_context("fork")
    go, items = context.SimpleQueue(), context.SimpleQueue()

    def send_later() -> None:
        go.get()
        time.sleep(1)  # ten times as long as blocked ranks take to find that they all are
        items.put(1)

    total = np.zeros(1)

    def call() -> None:
        nonlocal total
        total = rr.allreduce(np.full(1, float(items.get())), op=rr.Sum, name="item")

    if int(os.environ["RINGREDUCE_RANK"]) == 0:
        child = context.Process(target=send_later)
        child.start()
    with rr.init() as world:
        if world.rank == 0:
            second = threading.Thread(target=call)
            second.start()
            go.put(1)
            rr.barrier()
            second.join()
            child.join()
        else:
            total = rr.allreduce(np.ones(1), op=rr.Sum, name="item")
            rr.barrier()
        return float(total[0])


def test_a_thread_that_waits_for_a_child_process_may_call_next() -> None:
    assert run_ranks(waits_for_a_child_process, 2) == [2.0, 2.0]


def shutdown_with_pending_work() -> list[str]:
    import ringreduce as rr

    rr.init()
    handle = rr.allreduce_async(np.ones(3), name="never")
    if rr.rank() == 0:
        rr.shutdown()
        return [caught(handle.wait), caught(lambda: rr.allreduce(1))]
    return [caught(lambda: rr.allreduce(1)), caught(lambda: rr.allgather(np.ones(2)))]


def test_shutdown_fails_what_is_pending() -> None:
    first, second = run_ranks(shutdown_with_pending_work, 2)
    assert first[0].startswith(("no error", "ShutdownError")), first
    assert first[1].startswith("NotInitializedError")
    assert all(text.startswith("ShutdownError") for text in second), second


def shutdown_takes_memory_back() -> str:
    import ringreduce as rr

    rr.init()
    mine = rr.symmetric_empty(1 << 20, np.float32)
    mine[:] = 1
    rr.barrier()
    if rr.rank() == 1:
        receive_from_test()
        failure = caught(lambda: rr.allreduce_(mine, name="shared", op=rr.Sum))
        send_to_test("failed")
        return failure
    rr.allreduce_async_(mine, name="shared", op=rr.Sum)
    rr.shutdown()
    mine[:] = 7
    send_to_test("is mine again")
    receive_from_test()
    return f"{(mine != 7).sum()} of others"


def test_nobody_stores_into_registered_memory_after_its_rank_has_shut_down() -> None:
    """Rank 0 has announced an all-reduce; rank 1 calls it once rank 0 has left."""
    with start_ranks(shutdown_takes_memory_back, 2) as job:
        assert job.receive(0) == "is mine again"
        job.send(1)
        assert job.receive(1) == "failed"
        job.send(0)
        first, second = (outcome.value for outcome in job.wait())
    assert first == "0 of others"
    assert second.startswith("ShutdownError"), second


def exit_without_shutdown(count: int) -> str:
    """Rank 0 ends; what the others are blocked in raises."""
    import ringreduce as rr

    rr.init()
    if rr.rank() == 0:
        return "left"
    return caught(lambda: rr.allreduce(np.ones(count)))


@pytest.mark.parametrize("count", [1, 100_000])
def test_exit_is_a_shutdown(count: int) -> None:
    first, *others = run_ranks(exit_without_shutdown, 3, args=(count,), timeout_s=SOON_S)
    assert first == "left"
    assert all(text.startswith("ShutdownError: Horovod has been shut down.") for text in others), others


def shutdown_under_a_blocked_thread(count: int) -> str:
    import threading

    import ringreduce as rr

    rr.init()
    if rr.rank() == 1:
        receive_from_test()
        return ""
    texts: list[str] = []
    blocked = threading.Thread(target=lambda: texts.append(caught(lambda: rr.allreduce(np.ones(count)))))
    before = rr.stats()["operations"]
    blocked.start()
    while rr.stats()["operations"] == before:
        time.sleep(0.001)
    rr.shutdown()
    blocked.join()
    send_to_test("raised")
    return texts[0]


@pytest.mark.parametrize("count", [1, 100_000])
def test_shutdown_under_a_blocked_thread(count: int) -> None:
    with start_ranks(shutdown_under_a_blocked_thread, 2, args=(count,)) as job:
        assert job.receive(0, SOON_S) == "raised"
        job.send(1)
        assert job.wait()[0].value.startswith("ShutdownError")


def forked() -> list[str]:
    """A child like a DataLoader's worker, while the parent goes on."""
    import os

    import ringreduce as rr

    with rr.init() as world:
        pair = rr.add_process_set([0])
        x = np.ones(3)
        pending = rr.allreduce_async(x, name="pending", op=rr.Sum)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            calls: list[Any] = [
                lambda: rr.allreduce(x),
                rr.rank,
                rr.barrier,
                lambda: rr.allreduce(x, process_set=pair),
                pending.wait,
                rr.init,
            ]
            texts = [caught(call) for call in calls] + [f"initialized {rr.is_initialized()}"]
            rr.shutdown()
            os.write(write, "\n".join(texts).encode())
            os._exit(0)
        os.close(write)
        for _ in range(20):
            total = rr.allreduce(x, op=rr.Sum)
        texts = os.fdopen(read).read().split("\n")
        _, status = os.waitpid(child, 0)
        return [*texts, f"exit {status}", str(total[0]), str(pending.wait()[0]), str(world.size)]


def test_a_forked_child_is_no_rank() -> None:
    for rank, texts in enumerate(run_ranks(forked, 2)):
        for text in texts[:6]:
            assert text.startswith("NotInitializedError: "), text
            assert f"forked from rank {rank} and is no rank itself" in text
        assert texts[6:] == ["initialized False", "exit 0", "2.0", "2.0", "2"]


def rounds(count: int) -> list[int]:
    """init and shutdown again and again; descriptors and threads before and after."""
    import os

    import ringreduce as rr

    def used() -> list[int]:
        return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))]

    for index in range(count):
        rr.init()
        assert int(rr.allreduce(rr.rank(), op=rr.Sum)) == rr.size() * (rr.size() - 1) // 2
        rr.shutdown()
        if index == 4:
            before = used()
    return [after - at for after, at in zip(used(), before, strict=True)]


@pytest.mark.parametrize("size", [1, 2])
def test_init_and_shutdown_again_and_again(size: int) -> None:
    assert run_ranks(rounds, size, args=(100,)) == [[0, 0]] * size


def with_warnings() -> list[str]:
    import warnings

    import ringreduce as rr

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rr.init()  # the line that warnings show
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert {(one.filename, one.lineno) for one in seen} <= {(__file__, line)}
    chosen = {knob.name: (knob.value, knob.origin) for knob in rr.config.describe()}
    return [*(str(one.message) for one in seen), str(chosen["RINGREDUCE_TIMEOUT"])]


def test_unknown_variables_warn_with_the_nearest_name() -> None:
    env = {"RINGREDUCE_ALGORITM": "ring", "HOROVOD_CYCLE_TIME": "1", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "77"}
    first, second = run_ranks(with_warnings, 2, env=env)
    assert first[0] == (
        "RINGREDUCE_ALGORITM is set, but ringreduce has no such variable; did you mean RINGREDUCE_ALGORITHM?"
    )
    assert first[1].startswith("HOROVOD_CYCLE_TIME has no effect: ")
    assert first[2:] == second == ["('77', 'HOROVOD_STALL_SHUTDOWN_TIME_SECONDS')"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RINGREDUCE_TIMEOUT", "soon"),
        ("RINGREDUCE_INIT_TIMEOUT", "-1"),
        ("HOROVOD_FUSION_THRESHOLD", "many"),
        ("RINGREDUCE_ALGORITHM", "magic"),
        ("RINGREDUCE_DYNAMIC_PROCESS_SETS", "maybe"),
        ("RINGREDUCE_CHUNK", "3.5"),
        ("HOROVOD_FUSION_THRESHOLD", "1e-3"),
        ("RINGREDUCE_CACHE_CAPACITY", "4096.5"),
        ("HOROVOD_STALL_CHECK_DISABLE", "true"),
    ],
)
def test_bad_values_name_the_variable(name: str, value: str) -> None:
    text = run_ranks(init_error, 1, env={name: value})[0]
    assert text.startswith("InvalidArgumentError: "), text
    assert f"{name}={value}" in text


@pytest.mark.parametrize(
    "variables",
    [
        {"RINGREDUCE_CHUNK": "8192.0", "RINGREDUCE_FUSION_THRESHOLD": "1e6", "HOROVOD_CACHE_CAPACITY": "0"},
        {"HOROVOD_STALL_CHECK_DISABLE": "0"},
        {"HOROVOD_STALL_CHECK_DISABLE": "1"},
        {"HOROVOD_STALL_CHECK_DISABLE": ""},
        {"HOROVOD_STALL_CHECK_DISABLE": "true", "RINGREDUCE_STALL_WARNING": "5"},  # ours alone is read
        {"HOROVOD_FUSION_THRESHOLD": "3.5", "RINGREDUCE_FUSION_THRESHOLD": "3"},
    ],
    ids=str,
)
def test_whole_numbers_in_any_form_and_switches_are_taken(variables: dict[str, str]) -> None:
    assert run_ranks(inits, 1, env=variables) == [1]


def inits() -> int:
    import ringreduce as rr

    with rr.init() as world:
        return world.size


def init_error() -> str:
    import ringreduce as rr

    return caught(rr.init)


def test_config_describes_every_knob_before_init() -> None:
    names = [knob.name for knob in config.describe()]
    assert len(names) == len(set(names)) > 10
    assert config.seconds("RINGREDUCE_INIT_TIMEOUT") > 0
    assert config.unknown({"RINGREDUCE_SPIN": "1", "PATH": "", "RINGREDUCE_SPIN_US": "1"}) == {
        "RINGREDUCE_SPIN": "RINGREDUCE_SPIN_US"
    }
    assert environment.detect(environ={}, network=False).source == "single"


JOINS = "import ringreduce as rr; print(rr.init().size, rr.allreduce(1.0 + rr.rank(), op=rr.Sum))"


def start(*command: str, **environ: str) -> str:
    """What a program of this rank prints, or the last line of its traceback."""
    done = completed(command, env={**os.environ, **environ})
    return (done.stdout or done.stderr).strip().rpartition("\n")[2]


def start_programs() -> list[str]:
    """Of a rank with children: those that inherit its place, and those that have places of their own."""
    import ringreduce as rr

    inherits = (sys.executable, "-c", JOINS)
    nested = (sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2", *inherits)
    with rr.init():
        texts = [
            start(*inherits, RINGREDUCE_INIT_TIMEOUT="50"),  # which is not waited for
            start("sh", "-c", 'exec 3>&1; "$0" -c "$1"', *inherits[::2]),  # a grandchild is no rank either
            start(*inherits, RINGREDUCE_RANK="0", RINGREDUCE_SIZE="1"),
            start(*nested),
        ]
        rr.barrier()
    return [*texts, start(*inherits)]  # one of each rank: they are a job, as the ranks are none any more


def test_programs_that_a_rank_starts_are_no_ranks_unless_they_have_a_place() -> None:
    for rank, texts in enumerate(run_ranks(start_programs, 2)):
        for text in texts[:2]:
            assert text.startswith("ringreduce.errors.NotInitializedError: this process is no rank")
            assert f"rank {rank}/2, which is process" in text
            assert 'put ringreduce.init() under `if __name__ == "__main__":`' in text
        assert texts[2:] == ["1 1.0", "2 3.0", "2 3.0"]


SPAWNS = """
import multiprocessing, os, sys
import ringreduce as rr

rr.init()

def work(): pass

if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=work)
    child.start()
    child.join()
    print("ended", child.exitcode, rr.allreduce(1.0, op=rr.Sum), flush=True)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_of_multiprocessing_are_no_ranks(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNS)
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2", sys.executable, str(script), method]
    done = completed(command, env=clean_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["ended 1 2.0"] * 2
    assert done.stderr.count("NotInitializedError: this process is no rank") == 2


REPLACES = """
import os, sys
import ringreduce as rr

rr.init()
if len(sys.argv) == 1:
    rr.barrier()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
print(rr.allreduce(1.0, op=rr.Sum), flush=True)
"""


def test_a_rank_that_replaces_its_program_is_a_rank_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(REPLACES)
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2", sys.executable, str(script)]
    done = completed(command, env=clean_environment())
    assert (done.returncode, done.stdout) == (0, "2.0\n" * 2), done.stderr


def test_the_place_of_a_rank_that_has_ended_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand = environment.detect(environ={"PMI_RANK": "1", "PMI_SIZE": "2"}, network=False)
    place = dataclasses.replace(by_hand, job="4711")
    monkeypatch.setenv(inheritance.VARIABLE, "")
    inheritance.check(place)
    inheritance.mark(place)
    mine = os.environ[inheritance.VARIABLE]
    inheritance.check(place)  # this process's own
    with subprocess.Popen(["sleep", "100"]) as other:
        theirs = f"{other.pid}.{starter.start_time(other.pid)} " + mine.partition(" ")[2]
        monkeypatch.setenv(inheritance.VARIABLE, theirs)
        with pytest.raises(NotInitializedError, match=f"rank 1/2, which is process {other.pid}"):
            inheritance.check(place)
        inheritance.check(dataclasses.replace(place, rank=0))
        monkeypatch.setenv(inheritance.VARIABLE, theirs.replace("4711", ""))
        inheritance.check(by_hand)  # of a job that a rank has started, whose ranks have their own parent
        other.kill()
    inheritance.check(place)


def attaches() -> str:
    """Rank 1 has met rank 0, and does not come to the memory that they share until the test says so."""
    import ringreduce as rr
    from ringreduce import plan

    wanted, is_late = plan.wanted, os.environ["RINGREDUCE_RANK"] == "1"

    def late(again: bool = False) -> plan.Wanted:
        if not again:  # the call that is made before the ranks meet reads the plan again
            os.environ["RINGREDUCE_INIT_TIMEOUT"] = "0.3"
            if is_late:
                receive_from_test()
        return wanted(again)

    plan.wanted = late
    try:
        rr.init()
    except rr.Error as error:
        send_to_test(f"{type(error).__name__}: {error}")
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_rank_that_does_not_attach_in_time() -> None:
    with start_ranks(attaches, 2) as job:
        text = job.receive(0)
        job.send(1)
        texts = [rank.value for rank in job.wait()]
    assert text == texts[0]
    for told in texts:  # the late one, too
        assert str(told).startswith("TimeoutError: "), told
        assert "rank(s) 1 did not attach to the group's memory within 0.3 s" in str(told)


def told_by_init(**arguments: Any) -> list[str]:
    import ringreduce as rr

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        rr.init(**arguments)
    assert {one.filename for one in warned} <= {__file__}
    return [str(one.message) for one in warned]


def second_inits() -> list[list[str]]:
    import ringreduce as rr

    with rr.init() as world:
        silent = [{}, {"rank": world.rank, "size": 2}, {"comm": [0, 1]}, {"comm": []}, {"job": "of ringrun's ranks"}]
        assert not any(told_by_init(**arguments) for arguments in silent)
        wrong = [{"rank": 1 - world.rank, "size": 7}, {"comm": [0]}]
        told = [told_by_init(**arguments) for arguments in wrong]
        assert (rr.rank(), rr.size()) == (world.rank, 2)
    with rr.init(rank=0, size=1, job="mine"):
        assert not told_by_init(job="mine")
        told.append(told_by_init(job="another"))
    with rr.init(rank=0, size=1):
        return [*told, told_by_init(job="mine")]


def test_a_second_init_tells_what_it_ignores() -> None:
    for rank, told in enumerate(run_ranks(second_inits, 2)):
        cure = "of a job that runs. Call shutdown() before, or leave these arguments out"
        assert told == [
            [f"init(rank={1 - rank}, size=7) has no effect: this process is rank {rank}/2 {cure}"],
            [f"init(comm=[0]) has no effect: this process is rank {rank}/2 {cure}"],
            [f"init(job='another') has no effect: this process is rank 0/1 {cure}"],
            [f"init(job='mine') has no effect: this process is rank 0/1 {cure}"],
        ]
