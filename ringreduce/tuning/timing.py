"""Timed all-reduces of float32, within a time that is given for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import ringreduce
from ringreduce.bench import options as bench_options
from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES
from ringreduce.bench.loops import CoreLoop
from ringreduce.bench.measure import BATCHES, Row, measure
from ringreduce.bench.memory import operand
from ringreduce.job.process_sets import ProcessSet

PROBES = 3
WARMUP = 1
MOST = {False: 200, True: 20_000}
"""Calls of a size, at most: above SMALL_NBYTES, and up to there."""
FLOAT_NBYTES = 4


class Timer:
    """All-reduces of the job as `ringreduce bench allreduce` times them; figures are the slowest rank's.

    Args:
        cores: how many the ranks share.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._options = replace(bench_options.parse(["allreduce"]), check=False, limit=False, warmup=WARMUP)

    def row(self, nbytes: int, registered: bool, seconds: float) -> Row:
        """The row of one size. Collective; takes about so many seconds, or a few calls."""
        options = replace(self._options, buffers="registered" if registered else "private")
        small = nbytes <= SMALL_NBYTES
        probe = measure(replace(options, iters=BATCHES if small else PROBES), nbytes, self._cores)
        iters = int(seconds / (probe.p50_us * 1e-6))  # of a row that is the same on all ranks
        if iters <= 2 * PROBES:
            return probe
        return measure(
            replace(options, iters=max(BATCHES, min(MOST[small], iters)) if small else min(MOST[small], iters)),
            nbytes,
            self._cores,
        )

    def seconds(self, nbytes: int, calls: int, collective: str = "allreduce") -> float:
        """The median of so many calls on private memory. Collective."""
        return measure(replace(self._options, collective=collective, iters=calls), nbytes, self._cores).p50_us * 1e-6


def seconds_within(members: ProcessSet, nbytes: int, calls: int) -> float:
    """The median of so many all-reduces of each of some process sets, all at the same time. Collective over the job.

    members: the one that this rank is in.
    """
    x = operand(nbytes // FLOAT_NBYTES, np.float32, registered=False)
    loop = CoreLoop(members.group, COLLECTIVES["allreduce"], x, x, "float32", ringreduce.Sum)
    ringreduce.barrier()
    mine = float(np.median(loop.seconds(calls, True)))
    return float(ringreduce.allreduce(np.array([mine]), op=ringreduce.Max)[0])
