"""The least time that a collective needs, measured in the same run: of one machine here, between hosts link.py.

Above 4 KiB it is the collective's loads and stores by the same kernel, straight from and to registered memory, without
any synchronisation (docs/reference/benchmarks.md has the byte counts). Up to 4 KiB it is how long news takes from one
rank to another: every rank must learn of the last one's input. Where ranks share cores, each must also run once: so a
rank's loads and stores come after one another's (in_turns()), and news between two that give way to each other count
times ranks per core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ringreduce
from ringreduce import state
from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES, Collective
from ringreduce.bench.memory import is_limit_in_place, operand
from ringreduce.bench.oracle import DTYPES, OPS

if TYPE_CHECKING:
    from ringreduce.bench.options import Options

NEWS_TURNS = 2000
NEWS_NBYTES = 4096
REWRITTEN_NBYTES = 256 << 20  # about so much is rewritten for one limit
SLICE_S = 3e-3  # for so long Linux lets a process run on while others wait for its core, on 8 cores or more


def fraction_of_limit(options: Options, nbytes: int, count: int, p50_s: float, cores: int) -> float | None:
    """limit / p50: 1 is as fast as the machine, or the links between hosts, allow. Collective.

    None where there is no limit: one rank, bfloat16 on one host, MPI between hosts.

    Args:
        nbytes, count: as in the row.
        p50_s: the time that was reached, in seconds.
        cores: how many the ranks share.
    """
    group = ringreduce.global_process_set.group
    if len(set(state.require().hosts)) > 1:
        from ringreduce.bench import link  # one host does without it

        least_s = link.limit_s(options, nbytes)
        return None if least_s is None else least_s / p50_s
    if group.size == 1 or options.dtype == "bfloat16":
        return None
    if nbytes <= SMALL_NBYTES:
        return news_s(cores) / p50_s
    collective = COLLECTIVES[options.collective]
    in_place = is_limit_in_place(collective, options.in_place)
    iters = max(5, min(100, REWRITTEN_NBYTES // nbytes))
    op = OPS[options.op] if collective.reduces else OPS["sum"]
    return memory_s(collective, options.dtype, op, in_place, count, iters, cores) / p50_s


def news_s(cores: int) -> float:
    """Seconds until every rank of this host can know that the last one has called. Collective.

    cores: how many the ranks share.
    """
    group = ringreduce.global_process_set.group
    src = operand(NEWS_NBYTES, np.uint8, registered=True)
    best = min(group.one_way_latency(src, NEWS_TURNS) for _ in range(3))
    seconds = float(ringreduce.allreduce(np.array([best]), op=ringreduce.Max)[0])
    return seconds * ranks_per_core(group.size, cores)


def ranks_per_core(ranks: int, cores: int) -> float:
    """How many ranks take turns on a core."""
    return max(1.0, ranks / cores)


def in_turns(seconds: float, turns: float) -> float:
    """Seconds until all ranks of a core have done what takes each of them `seconds` by its own clock.

    That clock begins when the rank first runs, after the others' first time slices, or after all of their work where it
    is shorter than a slice. What comes later is in it.

    Args:
        seconds: the slowest rank's.
        turns: ranks on a core.

    >>> in_turns(1e-3, 4.0), round(in_turns(20e-3, 4.0), 6), in_turns(20e-3, 1.0)
    (0.004, 0.029, 0.02)
    """
    return seconds + (turns - 1) * min(seconds, SLICE_S)


def memory_s(collective: Collective, dtype: str, op: int, in_place: bool, count: int, iters: int, cores: int) -> float:
    """Seconds of the loads and stores of a collective on registered memory of one host. Collective.

    Args:
        dtype, op: of OPS and DTYPES; an op for all collectives.
        in_place: the result replaces the input.
        count: elements that a row counts.
        iters: calls, of which the median counts.
        cores: how many the ranks share.
    """
    group = ringreduce.global_process_set.group
    storage = DTYPES[dtype][0]
    operands = [operand(n, storage, registered=True) for n in collective.operand_counts(count, group.size, in_place)]
    mine = group.memory_limit(collective.name, operands[0], operands[-1], op, iters)
    slowest = np.sort(ringreduce.allreduce(np.array(mine), op=ringreduce.Max))
    return in_turns(float(slowest[slowest.size // 2]), ranks_per_core(group.size, cores))
