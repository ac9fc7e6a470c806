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
from unittest.mock import patch

import pytest
from processes import completed
from ranks import clean_environment, run_ranks

from ringreduce.collectives.buffers import readable
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.failure import uncaught
from ringreduce.job.failure.uncaught import report_address
from ringreduce.launch.reports import Causes, Reports

PROLOGUE = """
import os, sys, types
from ringreduce.job.failure import uncaught
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

def hook_as_torch():
    '''As init_process_group() does: what the hook before it writes is kept until that returns.'''
    import io
    before = sys.excepthook
    def hook(*args):
        shown, sys.stderr = sys.stderr, io.StringIO()
        try:
            before(*args)
        finally:
            text, sys.stderr = sys.stderr.getvalue(), shown
        sys.stderr.write("rank 0: " + text)
    sys.excepthook = hook
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
    "torch hooks between, nobody else": (
        "running['size'] = 1\nhook_as_torch()\nuncaught.tell_by(fail, lambda: None)\nraise ValueError",
        FAILS,
    ),
    "torch hooks later": ("hook_as_torch()\nraise ValueError", ABORTS),
    "torch hooks between": (
        "hook_as_torch()\nuncaught.tell_by(fail, lambda: None)\nuncaught.tell_by(fail, lambda: None)\nraise ValueError",
        ABORTS,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_when_it_aborts(case: str) -> None:
    code, expected = CASES[case]
    done = completed([sys.executable, "-c", PROLOGUE + code], env=clean_environment())
    assert re.sub(r":\d+\)", ")", done.stdout).splitlines() == expected, done.stderr
    others = {"no rank, a fork": 0, "sys.exit": 3, "without MPI, under Hydra": -signal.SIGTERM}
    assert done.returncode == (9 if expected == ABORTS else others.get(case, 1))


@pytest.mark.parametrize("again", [False, True])
def test_what_torchs_hook_keeps_is_written_before_the_end(again: bool) -> None:
    hooks = "sys.excepthook = sys.__excepthook__\nuncaught.arm(lambda: None, 'openmpi')\nhook_as_torch()\n"
    hooks += "uncaught.tell_by(fail, lambda: None)\n" if again else ""
    code = PROLOGUE + hooks + "raise ValueError('of the user')"
    done = completed([sys.executable, "-c", code], env=clean_environment())
    assert done.returncode == 9
    assert done.stderr.count("ValueError: of the user") == 1, done.stderr


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


def under_ringrun(program: str, folder: Path, size: int, status: int = 1) -> list[str]:
    """Lines of stderr of a program that fails."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", str(size), str(folder / "train.py")]
    done = completed(command, env=clean_environment())
    assert done.returncode == status, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize("way", WAYS_OUT)
def test_ringruns_last_line_is_the_cause_and_the_others_know(way: str, tmp_path: Path) -> None:
    lines = under_ringrun(FAILS_ON_RANK_1 + WAYS_OUT[way], tmp_path, 3)
    why = "json.decoder.JSONDecodeError: Expecting value: line 2 column 1 (char 4) (train.py:9)"
    for rank in (0, 2):
        raised = [
            line for line in lines if f"PeerLostError: [ringreduce rank {rank}/3 on " in line and "ringrun:" not in line
        ]
        assert [line.rpartition("] ")[2] for line in raised] == [f"lost rank 1: {why}"], lines
    assert lines[-1] == f"ringrun: the first uncaught exception was that of rank 1: {why}"


RANK_1_IS_KILLED = """
import os
import signal
import numpy as np
import ringreduce

ringreduce.init()
ringreduce.barrier()
if ringreduce.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        ringreduce.allreduce(np.ones(3))
except ringreduce.PeerLostError as error:
    text = f"UNAVAILABLE: error of a callback: {type(error).__name__}: {error}"
    """
WAYS_TO_REPEAT = {
    "raised from it": "raise RuntimeError('training failed') from error",
    "raised while it is handled": "[][1]",
    "hidden behind another": "raise RuntimeError('training failed') from None",
    "in a framework's own": "failed = RuntimeError(text)\nraise failed",
    "behind a headline": "failed = RuntimeError('Graph execution error:\\n\\n' + text)\nraise failed",
}


@pytest.mark.parametrize("way", WAYS_TO_REPEAT)
def test_the_cause_is_the_rank_that_was_killed_however_the_others_say_so(way: str, tmp_path: Path) -> None:
    lines = under_ringrun(RANK_1_IS_KILLED + WAYS_TO_REPEAT[way], tmp_path, 2, 128 + signal.SIGKILL)
    assert re.match("ringrun: the first to fail was rank 1 .* killed by signal 9", lines[-1]), lines


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
    assert re.search("lost rank 1: ValueError: \N{GRINNING FACE}{100,125} \\(test_uncaught.py:[0-9]+\\)$", second)


def test_the_line_about_a_rank_has_its_exception(tmp_path: Path) -> None:
    program = "import ringreduce\nringreduce.init()\nringreduce.barrier()\n[][ringreduce.rank()]"
    (line,) = [line for line in under_ringrun(program, tmp_path, 2) if "exited with status 1" in line]
    assert "s: IndexError: list index out of range (train.py:4)" in line


@pytest.mark.parametrize("name", ["PeerLostError", "ShutdownError"])
def test_reports_that_are_not_the_jobs_are_dropped(name: str) -> None:
    job = f"test-reports-{os.getpid()}"
    strange = [b"\xff{", b"", b"[" * 8000, json.dumps(["00ff", 0, "x"]).encode(), b"00ff", b"00ff\n", b"00ff\n{}"]
    wrong = [("00fe", [0, "a stranger"]), ("00ff", ["1", "no rank"]), ("00ff", [1]), ("\xe9", [0, "x"])]
    repeated = f"ringreduce.errors.{name}: rank 2: own"
    right = [("00ff", [*words]) for words in [(1, repeated), (2, "own\x1b\n"), (2, "later"), (0, "another")]]
    with selectors.PollSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        causes = Causes()
        reports = Reports(f"{job}:00ff", causes, selector)
        for report in [*strange, *(f"{secret}\n{json.dumps(words)}".encode() for secret, words in wrong + right)]:
            sender.sendto(report, report_address(job))
            reports.read()  # each: a socket may hold 10
        assert list(causes.texts.items()) == [(1, repeated), (2, "own  "), (0, "another")]
        assert causes.first() == (2, "own  ")
        reports.close()
        assert not selector.get_map()


# --- shutdown() by who goes on ----------------------------------------------------------------------------------------

ROUNDS = 50


def same_on_all(rounds: int, way: str) -> list[str]:
    """What is raised where all ranks leave by the same exception, which the fastest does before the others are done."""
    import numpy as np

    import ringreduce as rr

    def train(number: int) -> None:
        world = rr.init()
        try:
            for _ in range(3):
                rr.allreduce(np.ones(1_000_000, np.float32), op=rr.Sum)
            raise ValueError(number)
        finally:
            if way == "with":
                world.__exit__(*sys.exc_info())
            rr.shutdown()

    raised = []
    for number in range(rounds):
        try:
            train(number)
        except (ValueError, rr.HorovodInternalError) as error:
            raised.append(repr(error))
    return raised


@pytest.mark.parametrize("way", ["with", "finally"])
def test_who_has_finished_does_not_fail_the_others(way: str) -> None:
    own = [f"ValueError({number})" for number in range(ROUNDS)]
    assert run_ranks(same_on_all, 3, args=(ROUNDS, way)) == [own] * 3


def told(how: str) -> str | None:
    """What rank 0 raises where rank 1 leaves by shutdown() while it handles an exception."""
    import numpy as np

    import ringreduce as rr

    def fails(kind: type[BaseException]) -> None:
        try:
            raise kind("of rank 1")
        finally:
            rr.shutdown()

    try:
        raise OSError("handled when the job begins")
    except OSError:
        try:
            raise KeyError("handled within that")
        except KeyError:
            world = rr.init()
        if world.rank == 1 and how == "before":
            rr.shutdown()
    if world.rank == 0:
        with pytest.raises(rr.HorovodInternalError) as raised:
            rr.allreduce(np.ones(3))
        return type(raised.value).__name__ + str(raised.value).rpartition("lost rank 1")[2]
    if how in ("caught", "steps"):
        try:
            raise ValueError("caught") if how == "caught" else StopIteration
        except (ValueError, StopIteration):
            rr.shutdown()
    elif how == "interrupted":
        with (
            pytest.raises(KeyboardInterrupt),
            patch("ringreduce.job.failure.uncaught.cause", side_effect=KeyboardInterrupt),
        ):
            fails(ValueError)
        assert rr.is_initialized()  # so that the next one leaves
        rr.shutdown()
    elif how != "before":
        kind = {"internal": rr.HorovodInternalError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[how]
        with pytest.raises(kind):
            fails(kind)
    return None


@pytest.mark.parametrize("how", ["before", "caught", "steps", "interrupted", "internal", "exit", "interrupt"])
def test_what_is_a_cause(how: str) -> None:
    (text, _) = run_ranks(told, 2, args=(how,))
    if how == "caught":
        assert re.fullmatch(r"PeerLostError: ValueError: caught \(test_uncaught.py:\d+\)", text)
    else:
        assert text.startswith("ShutdownErrorHorovod has been shut down")


def test_the_place_of_an_error_of_ringreduces_is_the_line_that_called_it() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        readable(object())
    assert raised.traceback[-1].path.name == "buffers.py"
    assert re.search(r" \(test_uncaught.py:\d+\)$", uncaught.cause(raised.value))


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
    elif how == "shutdown":  # where it was forked, its parent's exception is handled
        rr.shutdown()
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
    "shutdown": ["ShutdownError", "0 0"],
}


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", ENDS)
def test_children_of_multiprocessing(how: str, method: str, tmp_path: Path) -> None:
    program = tmp_path / "children.py"
    program.write_text(CHILDREN)
    command = [sys.executable, str(program), method, how]
    done = completed(command, env=clean_environment())
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

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        for how in ("raise", "return"):
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
    done = completed(command, env=clean_environment())
    ends = ["fails: ValueError: of a child (children.py:15)", "leaves", "leaves"]
    assert done.stdout.splitlines() == ends * 3, done.stderr
