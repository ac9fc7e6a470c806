"""When an uncaught exception ends the job, and when not; under each mpirun: test_mpirun.py."""

import signal
import subprocess
import sys

import pytest
from ranks import clean_environment

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
"""
ABORTS = ["before: ValueError", "leaves the second job", "abort 1"]
QUIET = ABORTS[:1]
CASES = {
    "in a job": ("raise ValueError", ABORTS),
    "on the way out of one": ("try:\n    raise ValueError\nfinally:\n    uncaught.disarm()", ABORTS),
    "after one": ("uncaught.disarm()\nraise ValueError", QUIET),
    "no rank, a fork": ("if os.fork() == 0: raise ValueError\nos.wait()\nuncaught.disarm()", QUIET),
    "nobody else": ("running['size'] = 1\nraise ValueError", QUIET),
    "before MPI": ("running['initialized'] = False\nraise ValueError", QUIET),
    "after MPI": ("running['finalized'] = True\nraise ValueError", QUIET),
    "without MPI": ("del sys.modules['mpi4py.MPI']\nraise ValueError", QUIET),
    "without MPI, under Hydra": (
        "del sys.modules['mpi4py.MPI']\nuncaught.arm(lambda: print('leaves'), 'mpich')\nraise ValueError",
        [*QUIET, "leaves"],
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
    assert done.stdout.splitlines() == expected, done.stderr
    others = {"no rank, a fork": 0, "sys.exit": 3, "without MPI, under Hydra": -signal.SIGTERM}
    assert done.returncode == (9 if expected == ABORTS else others.get(case, 1))
