"""The self-test: all ranks reduce arrays of several sizes and dtypes and compare every element with the exact sum.

Inside a launched job it runs on the job's own ranks; otherwise on two ranks that ringrun starts for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

import ringreduce
from ringreduce.bench.oracle import DTYPES, Oracle
from ringreduce.errors import Error
from ringreduce.job.collective_json import allgather_json
from ringreduce.job.own_place import own_place
from ringreduce.launch.python import run_module
from ringreduce.plan import VARIABLE

RANKS = 2
TIMEOUT_S = 60.0  # on an idle machine 1 s
COUNTS = (2, 1000, 300_001)
OF_RINGRUN = "ringrun: "
DTYPES_TESTED = ("float32", "float16", "int32")


class Failed(Exception):
    """The self-test did not finish; the text says why."""


def on_this_job() -> dict[str, Any]:
    """Runs as one rank of the job this process belongs to. Collective; all ranks return the same.

    Returns:
        {"ranks", "sizes": what every rank was told by its launcher, "results", "wrong": elements, "seconds"}.
    """
    start = time.monotonic()
    with ringreduce.init() as world:
        group = ringreduce.global_process_set.group
        wrong = 0
        results = 0
        for dtype in DTYPES_TESTED:
            for count in COUNTS:
                for registered in (False, True):
                    wrong += _wrong(world.rank, world.size, dtype, count, registered)
                    results += count
        everyone = allgather_json(group, "doctor", [world.size, wrong])
    return {
        "ranks": world.size,
        "sizes": [size for size, _ in everyone],
        "results": results,
        "wrong": sum(count for _, count in everyone),
        "seconds": time.monotonic() - start,
    }


def on_own_ranks() -> dict[str, Any]:
    """Starts two ranks, runs on them, returns rank 0's result. Raises Failed."""
    rank = run_module("ringreduce.doctor", "--self-test")
    command = run_module("ringreduce.launch.ringrun", "-np", str(RANKS), *rank)
    # A plan is for the ranks of the user's job: init() on two ranks would refuse it. environment.knobs() looks at it.
    environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ)
    except subprocess.TimeoutExpired:
        raise Failed(f"two ranks did not finish within {TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise Failed(_last_words(done.stderr) or f"exit status {done.returncode} and no message")
    return _result(done.stdout)


def _last_words(stderr: str) -> str:
    """Why it has failed: a rank's last line, or ringrun's where no rank has said anything."""
    lines = [line for line in stderr.splitlines() if line]
    of_ranks = [line for line in lines if not line.startswith(OF_RINGRUN)]
    return (of_ranks or lines or [""])[-1].removeprefix(OF_RINGRUN)


def _result(stdout: str) -> dict[str, Any]:
    """What as_rank() has printed, as libraries may have printed before and after. Raises Failed."""
    lines = stdout.splitlines()
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            result = json.loads(line)
            if isinstance(result, dict) and "wrong" in result:  # what others print may be JSON too
                return result
    raise Failed(f"rank 0 has printed no result, but: {lines[-1]}" if lines else "rank 0 has printed no result")


def as_rank() -> int:
    """The body of each rank that on_own_ranks() starts."""
    try:
        result = on_this_job()
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if own_place().rank == 0:
        print(json.dumps(result))
    return 0


def _wrong(rank: int, ranks: int, dtype: str, count: int, registered: bool) -> int:
    oracle = Oracle(dtype, "sum", ranks)
    storage = DTYPES[dtype][0]
    array = ringreduce.symmetric_empty(count, storage) if registered else np.empty(count, storage)
    oracle.fill(array, rank)
    total = ringreduce.allreduce_(array, op=ringreduce.Sum)
    return oracle.wrong(total, 0, oracle.reduced(np.arange(count)))
