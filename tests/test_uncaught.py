"""When an uncaught exception ends the job, and when not; what ringrun says of it. Under each mpirun: test_mpirun.py."""

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import clean_environment, run_ranks

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

uncaught.tell_by(fail)
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
import json
import numpy as np
import ringreduce

def step():
    if ringreduce.rank() == 1:
        json.loads("[1,\\n}")
    ringreduce.allreduce(np.ones(3))

ringreduce.init()
while True:
    step()
"""


def under_ringrun(program: str, folder: Path, size: int) -> list[str]:
    """Lines of stderr of a program that fails."""
    (folder / "train.py").write_text(program)
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", str(size), str(folder / "train.py")]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()


def test_ringruns_last_line_is_the_cause_and_the_others_know(tmp_path: Path) -> None:
    lines = under_ringrun(FAILS_ON_RANK_1, tmp_path, 3)
    why = "json.decoder.JSONDecodeError: Expecting value: line 2 column 1 (char 4) (train.py:8)"
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
    right = [["00ff", 2, "own\x1b\n"], ["00ff", 2, "later"], ["00ff", 0, "another"]]
    with selectors.PollSelector() as selector, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        reports = Reports(f"{job}:00ff", selector)
        for report in [b"\xff{", *(json.dumps(words).encode() for words in wrong + right)]:
            sender.sendto(report, report_address(job))
        reports.read()
        assert list(reports.causes.items()) == [(2, "own  "), (0, "another")]
        reports.close()
        assert not selector.get_map()
