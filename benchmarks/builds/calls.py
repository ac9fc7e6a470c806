"""One rank of a job that times collectives called from Python. Rank 0 writes what was found.

    LAUNCHER python calls.py [ORDER...] --file FILE      # ORDER: "unnamed 8 idle", "named 1M computing", ...

unnamed, named: an all-reduce of float32. float16 (idle only): likewise. reducescatter, allgather, broadcast (idle
only): the size is that of the whole tensor.

idle: call after call; `call` is the slowest rank's mean over a train of calls, the median over the trains.
computing: allreduce_async_(), NumPy for a millisecond, wait(). `exposed` is the time within the two calls on the rank
that comes last, the median over the steps: what ranks wait for each other is not in it. `step` is the slowest rank's
time for all three, the median over the steps: it also shows what the engine takes from the computing.

Uses only names that every commit has.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import ringreduce

UNITS = {"K": 1 << 10, "M": 1 << 20}
BUDGET_S = 0.25  # of one order
TRAINS = 5
WARMUP = 3
FEWEST, MOST = 3, 2000  # calls, or steps
WORK_COUNT, WORK_TURNS = 1 << 14, 64
"""Square roots of so many float64, so often: 128 KiB stay in the core's own cache. Not fitted to a clock, so that both
builds have the same work."""


def main() -> int:
    """Runs the orders. Returns 0; a failed order is in the file, as its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("orders", nargs="*")
    parser.add_argument("--file", type=Path, required=True)
    args = parser.parse_args()
    times: dict[str, dict[str, float]] = {}
    failures: dict[str, str] = {}
    with ringreduce.init() as world:
        for order in args.orders:
            try:
                times[order] = timed(order)
            except (AttributeError, TypeError, ringreduce.Error) as error:  # what a commit does not have
                failures[order] = f"{type(error).__name__}: {error}"
        if world.rank == 0:
            args.file.write_text(json.dumps({"times": times, "failures": failures}))
    return 0


def timed(order: str) -> dict[str, float]:
    """Measure: microseconds. Collective."""
    name, size, how = order.split()
    x = np.zeros(nbytes(size) // 4, np.float32)
    options: dict[str, Any] = {"op": ringreduce.Sum}
    if name == "named":
        options["name"] = f"compare {size}"
    with collector_off():
        return idle(call_of(name, x, options)) if how == "idle" else computing(x, options)


def call_of(name: str, x: Any, options: dict[str, Any]) -> Callable[[], Any]:
    """What is called again and again."""
    if name == "float16":
        halves = x.view(np.float16)
        return lambda: ringreduce.allreduce_(halves, **options)
    if name == "reducescatter":
        return lambda: ringreduce.reducescatter(x, op=ringreduce.Sum)
    if name == "allgather":
        mine = x[: len(x) // ringreduce.size()]
        return lambda: ringreduce.allgather(mine)
    if name == "broadcast":
        return lambda: ringreduce.broadcast_(x, 0)
    return lambda: ringreduce.allreduce_(x, **options)


def idle(call: Callable[[], Any]) -> dict[str, float]:
    """Trains of calls."""

    def train(count: int) -> float:
        ringreduce.barrier()
        start = perf_counter_ns()
        for _ in range(count):
            call()
        return (perf_counter_ns() - start) / count

    calls = affordable(lambda: train(WARMUP))
    trains = min(TRAINS, calls)
    mine = [train(calls // trains) for _ in range(trains)]
    return {"call": microseconds(slowest(mine))}


def computing(x: Any, options: dict[str, Any]) -> dict[str, float]:
    """Steps of submitting, computing and waiting."""
    source, target = np.full(WORK_COUNT, 2.0), np.empty(WORK_COUNT)

    def step() -> tuple[int, int]:
        start = perf_counter_ns()
        handle = ringreduce.allreduce_async_(x, **options)
        submitted = perf_counter_ns()
        for _ in range(WORK_TURNS):
            np.sqrt(source, out=target)
        computed = perf_counter_ns()
        handle.wait()
        end = perf_counter_ns()
        return submitted - start + end - computed, end - start

    steps = affordable(lambda: max(step()[1] for _ in range(WARMUP)))
    ringreduce.barrier()
    mine = [step() for _ in range(steps)]
    exposed, whole = ([float(one[which]) for one in mine] for which in (0, 1))
    return {"exposed": microseconds(fastest(exposed)), "step": microseconds(slowest(whole))}


def affordable(warmup: Callable[[], float]) -> int:
    """How many of what takes so many nanoseconds fit into the budget; the same on all ranks."""
    return int(min(MOST, max(FEWEST, BUDGET_S * 1e9 / slowest([warmup()])[0])))


def slowest(mine: list[float]) -> Any:
    """Of each figure, the largest of all ranks."""
    return ringreduce.allreduce(np.array(mine), op=ringreduce.Max)


def fastest(mine: list[float]) -> Any:
    """Of each figure, the smallest of all ranks."""
    return ringreduce.allreduce(np.array(mine), op=ringreduce.Min)


def microseconds(nanoseconds: Any) -> float:
    """The median."""
    return float(np.median(nanoseconds)) * 1e-3


def nbytes(text: str) -> int:
    """Of "8" or "4K"."""
    unit = UNITS.get(text[-1], 1)
    return int(text if unit == 1 else text[:-1]) * unit


@contextmanager
def collector_off() -> Iterator[None]:
    """Python's garbage collector would stop one rank in the middle of a call."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


if __name__ == "__main__":
    sys.exit(main())
