"""All-reduces of many sizes, and by each algorithm: what they should take, and what they do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ringreduce
from ringreduce.tuning.costs import Costs
from ringreduce.tuning.model import predicted_s
from ringreduce.tuning.sizes import Sizes
from ringreduce.tuning.timing import Timer, least_calls

NBYTES = (8, 64, 512, *(1 << power for power in range(10, 25)))
"""18 sizes, 8 bytes to 16 MiB."""
ALGORITHMS = ("ring", "recursive_doubling")
"""What RINGREDUCE_ALGORITHM forces, and auto does not take."""
ALGORITHM_NBYTES = (64 << 10, 1 << 20, 4 << 20)
MOST_S = 0.05
"""Of one size: more calls do not make its median better."""
VARIABLE = "RINGREDUCE_ALGORITHM"


@dataclass(frozen=True)
class Reduction:
    """One all-reduce; times in microseconds, of the slowest rank.

    Attributes:
        memory: "private", or "registered": mapped by all ranks of the host.
        predicted_us: by model.py; None where it has no prediction.
        measured_us: the median.
    """

    nbytes: int
    memory: str
    algorithm: str
    predicted_us: float | None
    measured_us: float


def chosen(timer: Timer, costs: Costs, eager_nbytes: int, seconds: float) -> list[Reduction]:
    """Of every size, as auto does them. Collective; takes about so many seconds.

    Sizes that would take too much of the time are left out, and so is registered memory on several hosts.
    """
    memories = ("private",) if len(costs.ranks) > 1 or sum(costs.ranks) == 1 else ("private", "registered")
    share = seconds / (len(NBYTES) * len(memories))
    found = []
    for memory in memories:
        last: Reduction | None = None
        for nbytes in NBYTES:
            if last is not None and 2 * last.measured_us * 1e-6 * least_calls(nbytes) > 3 * share:
                break
            if memory == "registered" and nbytes <= eager_nbytes:
                continue  # as with private memory
            last = _measured(timer, costs, nbytes, memory, min(share, MOST_S))
            found.append(last)
    return found


def forced(costs: Costs, sizes: Sizes, cores: int, seconds: float) -> list[Reduction]:
    """By each of ALGORITHMS, in jobs of their own after this one. Collective, without a job; takes about so long."""
    share = seconds / (len(ALGORITHMS) * len(ALGORITHM_NBYTES))
    found = []
    for algorithm in ALGORITHMS:
        timer = Timer(cores)
        with _forced(algorithm), ringreduce.init():
            timer.set(sizes)
            for nbytes in ALGORITHM_NBYTES:
                found.append(_measured(timer, costs, nbytes, "private", share))
                if 4 * found[-1].measured_us * 1e-6 * least_calls(nbytes) > 3 * share:
                    break
    return found


def _measured(timer: Timer, costs: Costs, nbytes: int, memory: str, seconds: float) -> Reduction:
    row = timer.row(nbytes, seconds, memory == "registered")
    predicted = predicted_s(costs, row.algorithm, nbytes)
    return Reduction(nbytes, memory, row.algorithm, predicted and predicted * 1e6, row.p50_us)


@contextmanager
def _forced(algorithm: str) -> Iterator[None]:
    os.environ[VARIABLE] = algorithm
    try:
        yield
    finally:
        del os.environ[VARIABLE]
