"""Times leaving a job and joining it again, and leaving it with process sets: slowest rank, in milliseconds.

ringrun -np 2 python benchmarks/restart.py [--rounds 50] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ringreduce
from ringreduce.bench.percentile import p99

SETS = 20  # or as many pairs of ranks as there are


def slowest_ms(work: Callable[[], None]) -> float:
    """How long the slowest rank's work took. The ranks begin together; the work ends in a job of its own."""
    ringreduce.barrier()
    start = time.perf_counter()
    work()
    mine = np.array([time.perf_counter() - start])
    if not ringreduce.is_initialized():
        ringreduce.init()
    return float(ringreduce.allreduce(mine, op=ringreduce.Max)[0]) * 1e3


def again() -> None:
    ringreduce.shutdown()
    ringreduce.init()


def pairs() -> list[list[int]]:
    """Of a process set's ranks. Two ranks alone are the world already, so each has a set of its own."""
    size = ringreduce.size()
    return [list(ranks) for ranks in itertools.combinations(range(size), 2 if size > 2 else 1)][:SETS]


def leave_ms(sets: list[list[int]]) -> float:
    """shutdown() with these process sets, each used once."""
    for ranks in sets:
        every = ringreduce.add_process_set(ranks)
        if ringreduce.rank() in ranks:
            ringreduce.allreduce(np.ones(1), process_set=every)
    return slowest_ms(ringreduce.shutdown)


def figures(times: list[float]) -> dict[str, float]:
    return {"p50": statistics.median(times), "p99": p99(sorted(times)), "min": min(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    ringreduce.init()
    slowest_ms(again)  # the first init() of a machine measures it, and keeps what it found
    found = {"shutdown() and init()": figures([slowest_ms(again) for _ in range(options.rounds)])}
    for sets in ([], pairs()[:1], pairs()):
        times = [leave_ms(sets) for _ in range(max(1, options.rounds // 5))]
        found[f"shutdown() with {len(sets)} process sets"] = figures(times)
    if ringreduce.rank() == 0:
        for what, ms in found.items():
            figures_of = ", ".join(f"{name} {value:.1f}" for name, value in ms.items())
            print(f"{what}, {ringreduce.size()} ranks: {figures_of} ms")
        if options.json:
            options.json.write_text(json.dumps({"ranks": ringreduce.size(), "ms": found}, indent=1) + "\n")
    ringreduce.shutdown()


if __name__ == "__main__":
    main()
