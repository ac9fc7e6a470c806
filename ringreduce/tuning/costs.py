"""What a machine's parts cost, measured one by one: news between ranks, folding, copying, staging, links of hosts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import perf_counter

import numpy as np

import ringreduce
from ringreduce import state
from ringreduce.bench import limit, link
from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.memory import operand
from ringreduce.bench.oracle import OPS
from ringreduce.collectives.buffers import native
from ringreduce.plan import ranks_by_host
from ringreduce.tuning.sizes import Sizes
from ringreduce.tuning.timing import FLOAT_NBYTES, Timer, WithinHosts

SIZES = (64 << 10, 1 << 20, 8 << 20)
CALLS = (30, 12, 5)
"""Of each of SIZES."""
LEAST_CALLS = 3
SMALL_S = 0.02
"""For calls of a few bytes."""


@dataclass(frozen=True)
class Curve:
    """Seconds by bytes, from a few of them: a straight line between the logarithms of two, in proportion beyond."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __call__(self, nbytes: float) -> float:
        """Seconds for so many bytes.

        >>> curve = Curve((100, 10000), (1.0, 10.0))
        >>> curve(50), round(curve(1000), 6), curve(20000)
        (0.5, 3.162278, 20.0)
        """
        if nbytes <= self.sizes[0]:
            return self.seconds[0] * nbytes / self.sizes[0]
        if nbytes >= self.sizes[-1]:
            return self.seconds[-1] * nbytes / self.sizes[-1]
        at = next(i for i, size in enumerate(self.sizes) if size >= nbytes)
        low, high = self.sizes[at - 1], self.sizes[at]
        share = math.log(nbytes / low) / math.log(high / low)
        return self.seconds[at - 1] * math.pow(self.seconds[at] / self.seconds[at - 1], share)


@dataclass(frozen=True)
class HostCosts:
    """Of ranks on one host; the slowest rank's, all working at the same time, or in turns where they share cores.
    Of S bytes of each rank:

    Attributes:
        news_s: until every rank can know that the last one has called: the least that any call takes.
        barrier_s: a barrier, which ends from the request slots.
        logged_s: an all-reduce of 8 bytes by the operation log, whose ranks agree on it before it begins.
        fold: every rank loads its share of all ranks' inputs and stores it in all outputs, as "direct" does.
        scatter: every rank folds its share of all inputs for itself.
        gather: every rank copies all shares, which make S.
        stage: every rank writes what another has read last.
    """

    news_s: float
    barrier_s: float
    logged_s: float
    fold: Curve
    scatter: Curve
    gather: Curve
    stage: Curve


@dataclass(frozen=True)
class Costs:
    """Of a job.

    Attributes:
        ranks: of each host.
        host: on one host; None on several, and where there is one rank.
        barrier_s: on several hosts, of all ranks.
        within: on several hosts, an all-reduce of the ranks of each; None where each has one.
        link: the slowest between hosts; None on one, over MPI, and where a host does not reach the next one.
    """

    ranks: tuple[int, ...]
    host: HostCosts | None = None
    barrier_s: float = 0.0
    within: Curve | None = None
    link: link.Link | None = None


def measured(timer: Timer, cores: int, within: WithinHosts | None) -> Costs:
    """Collective; leaves the sizes that were in force.

    Args:
        cores: how many the ranks share.
        within: where hosts have several ranks, and there are several hosts.
    """
    ranks = ranks_by_host(state.require().hosts)
    if len(ranks) == 1:
        return Costs(ranks, host=_host(timer, cores) if ranks[0] > 1 else None)
    curve = None
    if within is not None:
        curve = Curve(SIZES, tuple(within.seconds(nbytes, n) for nbytes, n in zip(SIZES, CALLS, strict=True)))
    return Costs(ranks, barrier_s=_barrier_s(timer), within=curve, link=link.slowest())


def _barrier_s(timer: Timer) -> float:
    return timer.row(0, SMALL_S, collective="barrier").p50_us * 1e-6


def _host(timer: Timer, cores: int) -> HostCosts:
    turns = limit.ranks_per_core(ringreduce.size(), cores)
    calls = [max(LEAST_CALLS, int(count / turns)) for count in CALLS]

    def curve(name: str) -> Curve:
        counts = [COLLECTIVES[name].count(nbytes, FLOAT_NBYTES, ringreduce.size()) for nbytes in SIZES]
        return Curve(
            SIZES,
            tuple(
                limit.memory_s(COLLECTIVES[name], "float32", OPS["sum"], name == "allreduce", count, n, cores)
                for count, n in zip(counts, calls, strict=True)
            ),
        )

    stages = [limit.in_turns(_stage_s(nbytes, n), turns) for nbytes, n in zip(SIZES, calls, strict=True)]
    stage = Curve(SIZES, tuple(stages))
    news_s, barrier_s = limit.news_s(cores), _barrier_s(timer)
    before = Sizes(*ringreduce.global_process_set.group.sizes())
    timer.set(Sizes(eager_nbytes=0))
    logged_s = timer.row(8, SMALL_S).p50_us * 1e-6
    timer.set(before)
    return HostCosts(news_s, barrier_s, logged_s, curve("allreduce"), curve("reducescatter"), curve("allgather"), stage)


def _stage_s(nbytes: int, calls: int) -> float:
    """Seconds of a copy into memory that the other ranks have just read; the slowest rank's median."""
    group = ringreduce.global_process_set.group
    nbytes = COLLECTIVES["alltoall"].count(nbytes, 1, group.size)
    x = operand(nbytes, np.uint8, registered=False)
    shared = operand(nbytes, np.uint8, registered=True)
    taken = operand(nbytes, np.uint8, registered=True)
    times = []
    for _ in range(calls):
        group.memory_limit("alltoall", native(shared), native(taken), OPS["sum"], 1)
        begin = perf_counter()
        np.copyto(shared, x)
        times.append(perf_counter() - begin)
    return float(ringreduce.allreduce(np.array([np.median(times)]), op=ringreduce.Max)[0])
