"""Times functions in turns, on every rank at once: what one costs over another, in microseconds a call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import ringreduce

TENSORS, ELEMENTS = 100, 16
TURNS, CALLS = 40, 50


def turns_us(functions: list[Callable[[], object]]) -> list[list[float]]:
    """Each function's time a call, mean of CALLS, for each of TURNS turns; the ranks begin each together."""
    turns = [[_mean_us(function) for function in functions] for _ in range(1 + TURNS)]
    return turns[1:]


def report(what: str, functions: list[Callable[[], object]]) -> None:
    """Measures [plain, with a barrier, with the all-reduce], and prints on rank 0."""
    turns = turns_us(functions)
    waiting, added = (statistics.median(turn[i] - turn[0] for turn in turns) for i in (1, 2))
    own = statistics.median(turn[2] - turn[1] for turn in turns)
    if ringreduce.rank() == 0:
        print(
            f"{what} of {TENSORS} tensors of {ELEMENTS} float32, {ringreduce.size()} ranks: "
            f"{statistics.median(turn[0] for turn in turns):.0f} us without all-reduce, {added:.0f} us more with a "
            f"grouped one; {waiting:.0f} us more with nothing but a barrier; {own:.0f} us between the two"
        )


def _mean_us(function: Callable[[], object]) -> float:
    ringreduce.barrier()
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) * 1e6 / CALLS
