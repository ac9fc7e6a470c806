"""Timed all-reduces of float32, within a time that is given for them. Figures are the slowest rank's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import ringreduce
from ringreduce.bench import options as bench_options
from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES
from ringreduce.bench.loops import CoreLoop
from ringreduce.bench.measure import BATCHES, Row, measure
from ringreduce.bench.memory import operand
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tuning.sizes import Sizes

PROBES = 3
WARMUP = 1
MOST = {False: 200, True: 20_000}
"""Calls of a size, at most: above SMALL_NBYTES, and up to there."""
FLOAT_NBYTES = 4


def least_calls(nbytes: int) -> int:
    """Calls of one size, at least."""
    return WARMUP + (BATCHES if nbytes <= SMALL_NBYTES else PROBES)


class Timer:
    """Collectives of the job as `ringreduce bench` times them.

    Args:
        cores: how many the ranks share.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._options = replace(bench_options.parse(["allreduce"]), check=False, limit=False, warmup=WARMUP)

    def row(self, nbytes: int, seconds: float, registered: bool = False, collective: str = "allreduce") -> Row:
        """The row of one size. Collective; takes about so many seconds, or least_calls()."""
        buffers = "registered" if registered else "private"
        options = replace(self._options, collective=collective, buffers=buffers)
        is_small = nbytes <= SMALL_NBYTES
        probe = measure(replace(options, iters=least_calls(nbytes) - WARMUP), nbytes, self._cores)
        calls = min(MOST[is_small], int(seconds / (probe.p50_us * 1e-6)))  # of a row that is the same on all ranks
        if calls <= 2 * least_calls(nbytes):
            return probe
        return measure(replace(options, iters=calls), nbytes, self._cores)

    def set(self, sizes: Sizes) -> None:
        """See Measured in choosing.py."""
        sizes.set(ringreduce.global_process_set.group)

    def seconds(self, nbytes: int, calls: int) -> float:
        """See Measured in choosing.py."""
        return measure(replace(self._options, iters=calls), nbytes, self._cores).p50_us * 1e-6


class WithinHosts:
    """All-reduces of the ranks of each host, on all hosts at the same time. Collective over the job.

    Args:
        sets: one of each host.
    """

    def __init__(self, sets: Sequence[ProcessSet]) -> None:
        self._mine = next(members for members in sets if members.included())

    def set(self, sizes: Sizes) -> None:
        """See Measured in choosing.py."""
        sizes.set(self._mine.group)

    def seconds(self, nbytes: int, calls: int) -> float:
        """See Measured in choosing.py."""
        x = operand(nbytes // FLOAT_NBYTES, np.float32, registered=False)
        loop = CoreLoop(self._mine.group, COLLECTIVES["allreduce"], x, x, "float32", ringreduce.Sum)
        ringreduce.barrier()
        loop.seconds(WARMUP, True)
        mine = float(np.median(loop.seconds(calls, True)))
        return float(ringreduce.allreduce(np.array([mine]), op=ringreduce.Max)[0])


@contextmanager
def within_hosts(hosts: Sequence[int]) -> Iterator[WithinHosts]:
    """Process sets of the ranks of each host. Collective. hosts: by rank, equal on the same host."""
    sets = [
        ringreduce.add_process_set([rank for rank, other in enumerate(hosts) if other == host])
        for host in sorted(set(hosts))
    ]
    yield WithinHosts(sets)
    for members in sets:
        ringreduce.remove_process_set(members)
