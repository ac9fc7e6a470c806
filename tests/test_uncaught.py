"""When an uncaught exception ends the job, and when not; what ringrun says of it. Under each mpirun: test_mpirun.py."""

import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import clean_environment, run_ranks

from ringreduce import uncaught
from ringreduce.launch.reports import Reports
from ringreduce.uncaught import report_address

PROLOGUE = """
import os, sys, types
from ringreduce import uncaught
uncaught.GRACE_S = 0.0

running = {"size": 2, "initialized": True, "finalized": False}
world = types.SimpleNamespace(Get_size=lambda: running["size"], Abort=lambda code: (print("abort", code), os._exit(9)))
sys.modules["mpi4py.MPI"] = types.SimpleNamespace(
    Is_initialized=lambda: running["initialized"], Is_finalized=lambda: running["finalized"], COMM_WORLD=world)
sys.excepthook = lambda kind, *_: print("before:", kind.__name__)
uncaught.arm(lambda: print("leaves"), "mpich")
uncaught.arm(lambda: print("leaves the second job"), "openmpi")

def fail(why):
    print("fails:", why)
    raise OSError("nobody is there")

uncaught.tell_by(fail, lambda: None)
"""
QUIET = ["before: ValueError"]
FAILS = [*QUIET, "fails: ValueError (<string>)"]
ABORTS = [*FAILS, "leaves the second job", "abort 1"]
CASES = {
    "in a job": ("raise ValueError", ABORTS),
    "on the way out of one": ("try:\n    raise ValueError\nfinally:\n    uncaught.disarm()", ABORTS),
    "after one": ("uncaught.disarm()\nraise ValueError", FAILS),
    "no rank, a fork": ("if os.fork() == 0: raise ValueError\nos.wait()\nuncaught.disarm()", QUIET),
    "nobody else": ("running['size'] = 1\nraise ValueError", FAILS),
    "before MPI": ("running['initialized'] = False\nraise ValueError", FAILS),
    "after MPI": ("running['finalized'] = True\nraise ValueError", FAILS),
    "without MPI": ("del sys.modules['mpi4py.MPI']\nraise ValueError", FAILS),
    "without MPI, under Hydra": (
        "del sys.modules['mpi4py.MPI']\nuncaught.arm(lambda: print('leaves'), 'mpich')\nraise ValueError",
        [*FAILS, "leaves"],
    ),
    "at a prompt": ("sys.ps1 = '>>> '\nraise ValueError", QUIET),
    "sys.exit": ("sys.exit(3)", []),
}


@pytest.mark.parametrize("case", CASES)
def test_when_it_aborts(case: str) -> None:
    code, expected = CASES[case]
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + code], env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert re.sub(r":\d+\)", ")", done.stdout).splitlines() == expected, done.stderr
    others = {"no rank, a fork": 0, "sys.exit": 3, "without MPI, under Hydra": -signal.SIGTERM}
    assert done.returncode == (9 if expected == ABORTS else others.get(case, 1))


# --- under ringrun ----------------------------------------------------------------------------------------------------

FAILS_ON_RANK_1 = """
import contextlib
import json
import numpy as np
import ringreduce

def step():
    if ringreduce.rank() == 1:
        json.loads("[1,\\n}")
    ringreduce.allreduce(np.ones(3))

def train():
    while True:
        step()

ringreduce.init()
"""
WAYS_OUT = {
    "of the interpreter": "train()",
    "finally": """
try:
    train()
finally:
    ringreduce.shutdown()
""",
    "finally with more": """
try:
    train()
finally:
    try:
        ringreduce.shutdown()
    except OSError:
        print("?")
    print("ends")
""",
    "except": """
try:
    train()
except Exception as error:
    ringreduce.shutdown()
    raise
""",
    "a stack": """
with contextlib.ExitStack() as stack:
    stack.callback(ringreduce.shutdown)
    train()
""",
    "a generator": """
@contextlib.contextmanager
def job():
    try:
        yield
    finally:
        ringreduce.shutdown()

with job():
    train()
""",
}


def under_ringrun(program: str, folder: Path, size: int) -> list[str]:
    """Lines of stderr of a program that fails."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", str(size), str(folder / "train.py")]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("way", WAYS_OUT)
def test_ringruns_last_line_is_the_cause_and_the_others_know(way: str, tmp_path: Path) -> None:
    lines = under_ringrun(FAILS_ON_RANK_1 + WAYS_OUT[way], tmp_path, 3)
    why = "json.decoder.JSONDecodeError: Expecting value: line 2 column 1 (char 4) (train.py:9)"
    survivors = [line for line in lines if "PeerLostError: [ringreduce rank 1/3" in line]
    assert sum(line.endswith(f"lost rank 1: {why}") for line in survivors) == 2, lines
    assert lines[-1] == f"ringrun: the first uncaught exception was that of rank 1: {why}"


def unprintable() -> list[str]:
    """An exception with a file name that is no UTF-8, and one that is too long in letters of four bytes."""
    import ringreduce as rr

    def step(text: str) -> None:
        with rr.init() as world:
            rr.barrier()
            if world.rank == 1:
                raise ValueError(text)
            rr.barrier()

    told = []
    for text in ("caf\udce9", "\N{GRINNING FACE}" * 600):
        with pytest.raises((ValueError, rr.PeerLostError)) as raised:
            step(text)
        told.append(str(raised.value))
        assert not rr.is_initialized()
    return told


def test_a_cause_in_letters_that_do_not_fit() -> None:
    (first, second), _ = run_ranks(unprintable, 2)
    assert r"lost rank 1: ValueError: caf\udce9 (test_uncaught.py:" in first
    assert "lost rank 1: ValueError: \N{GRINNING FACE}\N{GRINNING FACE}" in second


def test_the_line_about_a_rank_has_its_exception(tmp_path: Path) -> None:
    program = "import ringreduce\nringreduce.init()\nringreduce.barrier()\n[][ringreduce.rank()]"
    (line,) = [line for line in under_ringrun(program, tmp_path, 2) if "exited with status 1" in line]
    assert "s: IndexError: list index out of range (train.py:4)" in line


def test_reports_that_are_not_the_jobs_are_dropped() -> None:
    job = f"test-reports-{os.getpid()}"
    wrong = [["00fe", 0, "a stranger"], ["00ff", "1", "no rank"], ["00ff", 1], {"00ff": 1}]
    repeated = "ringreduce.errors.PeerLostError: lost rank 2: own"
    right = [["00ff", 1, repeated], ["00ff", 2, "own\x1b\n"], ["00ff", 2, "later"], ["00ff", 0, "another"]]
    with selectors.PollSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        reports = Reports(f"{job}:00ff", selector)
        for report in [b"\xff{", *(json.dumps(words).encode() for words in wrong + right)]:
            sender.sendto(report, report_address(job))
        reports.read()
        assert list(reports.causes.items()) == [(1, repeated), (2, "own  "), (0, "another")]
        assert reports.first() == (2, "own  ")
        reports.close()
        assert not selector.get_map()


# --- shutdown() by who goes on ----------------------------------------------------------------------------------------

ROUNDS = 40


def ends_by_an_exception() -> int:
    """Rounds in which the job ends: one rank after the other ends it in an `except`, the others do without one."""
    import numpy as np

    import ringreduce as rr

    ended = 0
    for number in range(ROUNDS):
        world = rr.init()
        batches = iter([np.ones(1_000_000, np.float32)] * 2)
        while rr.is_initialized():
            try:
                rr.allreduce(next(batches), op=rr.Sum, name="batch")
            except StopIteration:
                if number % world.size == world.rank:
                    rr.shutdown()
                    ended += 1
                break
        rr.shutdown()
    return ended


def test_who_has_finished_does_not_fail_the_others() -> None:
    assert sum(run_ranks(ends_by_an_exception, 3)) == ROUNDS


def told(how: str) -> str | None:
    """What rank 0 raises where rank 1 leaves by shutdown() and does not go with the exception that it handles."""
    import numpy as np

    import ringreduce as rr

    def fails(kind: type[BaseException]) -> None:
        try:
            raise kind("of rank 1")
        finally:
            rr.shutdown()

    world = rr.init()
    if world.rank == 0:
        with pytest.raises(rr.HorovodInternalError) as raised:
            rr.allreduce(np.ones(3))
        return type(raised.value).__name__
    if how == "caught":
        try:
            raise ValueError
        except ValueError:
            rr.shutdown()
    else:
        kind = {"internal": rr.HorovodInternalError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[how]
        with pytest.raises(kind):
            fails(kind)
    return None


@pytest.mark.parametrize("how", ["caught", "internal", "exit", "interrupt"])
def test_what_is_no_cause_is_not_told(how: str) -> None:
    assert run_ranks(told, 2, args=(how,)) == ["ShutdownError", None]


def train_again() -> list[str]:
    """Rank 1 fails, leaves in a `finally` and catches the exception further out; both ranks start anew."""
    import numpy as np

    import ringreduce as rr

    errors = []

    def train(attempt: int) -> None:
        world = rr.init()
        try:
            if attempt == 0 and world.rank == 1:
                raise ValueError("of rank 1")
            rr.allreduce(np.ones(3))
        finally:
            rr.shutdown()

    for attempt in range(2):
        try:
            train(attempt)
        except (ValueError, rr.HorovodInternalError) as error:
            errors.append(str(error).rpartition("lost rank 1: ")[2])
    return errors


def test_all_can_begin_again() -> None:
    (told,), own = run_ranks(train_again, 2)
    assert re.fullmatch(r"ValueError: of rank 1 \(test_uncaught.py:\d+\)", told)
    assert own == ["of rank 1"]


# --- children of multiprocessing --------------------------------------------------------------------------------------

CHILDREN = """
import multiprocessing, sys
import numpy as np
import ringreduce as rr

def work(rank, how):
    rr.init(rank=rank, size=2)
    if rank == 0:
        try:
            while True:
                rr.allreduce(np.ones(3))
        except rr.HorovodInternalError as error:
            print(type(error).__name__, str(error).rpartition("lost rank 1: ")[2] if how == "raise" else "")
    elif how == "raise":
        raise ValueError("of a child")
    elif how == "exit":
        try:
            raise ValueError("handled")
        except ValueError:
            sys.exit(3)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ranks = [context.Process(target=work, args=(rank, sys.argv[2])) for rank in range(2)]
    try:
        raise OSError("not the children's")
    except OSError:
        for rank in ranks:
            rank.start()
    for rank in ranks:
        rank.join()
    print(*(rank.exitcode for rank in ranks))
"""
ENDS = {
    "raise": ["PeerLostError ValueError: of a child (children.py:15)", "0 1"],
    "exit": ["ShutdownError", "0 3"],
    "return": ["ShutdownError", "0 0"],
}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ENDS)
def test_children_of_multiprocessing(how: str, method: str, tmp_path: Path) -> None:
    program = tmp_path / "children.py"
    program.write_text(CHILDREN)
    command = [sys.executable, str(program), method, how]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert [line.strip() for line in done.stdout.splitlines()] == ENDS[how], done.stderr


OF_ANY_PYTHON = """
import importlib.util, multiprocessing, sys

def load():
    spec = importlib.util.spec_from_file_location("uncaught", sys.argv[1])
    uncaught = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(uncaught)
    return uncaught

def work(how):
    uncaught = load()
    say = lambda *words: print(*words, flush=True)
    uncaught.tell_by(lambda what: say("fails:", what), lambda: say("leaves"))
    if how == "raise":
        raise ValueError("of a child")
    if how == "finally":
        try:
            raise ValueError("of a child")
        finally:
            say("leaving:", repr(uncaught.leaving()))
    if how == "except":
        try:
            raise ValueError("of a child")
        except ValueError:
            say("leaving:", repr(uncaught.leaving()))

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        for how in ("raise", "return", "finally", "except"):
            try:
                raise OSError("not the child's")
            except OSError:
                child = multiprocessing.get_context(method).Process(target=work, args=(how,))
                child.start()
                child.join()
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_hooks_in_each_python(version: str, tmp_path: Path) -> None:
    own = "{}.{}".format(*sys.version_info)
    python = sys.executable if version == own else shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"there is no Python {version}")
    program = tmp_path / "children.py"
    program.write_text(OF_ANY_PYTHON)
    command = [python, str(program), uncaught.__file__]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    fails = "fails: ValueError: of a child (children.py:{})"
    ends = [fails.format(15), "leaves", "leaves"]
    ends += ["leaving: ValueError('of a child')", fails.format(18), "leaves", "leaving: None", "leaves"]
    assert done.stdout.splitlines() == ends * 3, done.stderr
