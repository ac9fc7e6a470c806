"""One row of the table: operands, correctness, then time. docs/reference/benchmarks.md is this file in prose.

Up to 4 KiB, calls are timed back to back: a barrier before each would measure how unevenly ranks leave a barrier.
Above, each call comes after rewriting the input and a barrier: a buffer that no one writes flatters the caches.
Either way a sample is the slowest rank's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import ringreduce
from ringreduce import state
from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES
from ringreduce.bench.limit import fraction_of_limit
from ringreduce.bench.loops import CoreLoop, Loop, PythonLoop
from ringreduce.bench.memory import operand
from ringreduce.bench.oracle import DTYPES, OPS
from ringreduce.bench.percentile import p99
from ringreduce.collectives.buffers import CODES

if TYPE_CHECKING:
    from ringreduce.bench.options import Options

BUDGET_S = 3.0
LEAST = 5
BATCHES = 20  # level c, small: p50, p99 and min are over this many means
REWRITTEN_NBYTES = 2 << 30  # level c and python, large: about so much is rewritten and reduced per row


@dataclass(frozen=True)
class Row:
    """One measured size. Times are microseconds; wrong is None when unchecked."""

    nbytes: int
    count: int
    in_place: bool
    algorithm: str
    min_us: float
    p50_us: float
    p99_us: float
    algbw_GBps: float
    busbw_GBps: float
    wrong: int | None
    fraction_of_limit: float | None = None


def measure(options: Options, nbytes: int, cores: int) -> Row:
    """Checks and times one size. Collective; every rank gets the same row.

    Args:
        cores: how many the ranks share; with fewer cores than ranks there are fewer calls.

    Raises:
        InvalidArgumentError: too many ranks for an exact check of this dtype and op.
        UnavailableError: bfloat16 at level python without ml_dtypes.
    """
    collective = COLLECTIVES[options.collective]
    group = ringreduce.global_process_set.group
    rank, ranks = group.rank, group.size
    storage = DTYPES[options.dtype][0]
    itemsize = np.dtype(storage).itemsize
    count = collective.count(nbytes, itemsize, ranks)
    part = count // ranks
    in_place = collective.is_in_place(options.in_place)
    registered = options.buffers == "registered"
    operands = [operand(n, storage, registered) for n in collective.operand_counts(count, ranks, in_place)]
    src, dst = operands[0], operands[-1]

    loop: Loop
    if options.level == "c":
        loop = CoreLoop(group, collective, src, dst, options.dtype, OPS[options.op])
    else:
        loop = PythonLoop(collective, src, dst, options.dtype, OPS[options.op])

    def check() -> int:
        """Elements of all ranks that one call makes wrong."""
        oracle = collective.oracle(options.dtype, options.op, ranks)
        oracle.fill(src, rank)
        output = loop.once()
        mine = collective.wrong(oracle, rank, part, output, dst.size)
        wrong = int(ringreduce.allreduce(np.array([mine]), op=ringreduce.Sum)[0])
        src.fill(0)  # back to back, in place: sums of zeros stay finite
        return wrong + abs(output.size - dst.size)

    total = count * itemsize
    wrong = check() if options.check else None
    samples = _samples(loop, options, total, max(1, -(-ranks // cores)))
    if wrong is not None:
        wrong += check()  # what comes after many calls may go another way than the first one
    p50 = float(samples[samples.size // 2])
    algbw = total / p50 * 1e-9
    return Row(
        nbytes=total,
        count=count,
        in_place=in_place,
        algorithm=_algorithm(options, total),
        min_us=float(samples[0]) * 1e6,
        p50_us=p50 * 1e6,
        p99_us=p99(samples) * 1e6,
        algbw_GBps=algbw,
        busbw_GBps=algbw * collective.bus(ranks),
        wrong=wrong,
        fraction_of_limit=fraction_of_limit(options, total, count, p50, cores) if options.limit else None,
    )


def default_iters(nbytes: int, level: str, ranks_per_core: int) -> int:
    """Calls to time: enough for a steady figure, few enough for about a second a row."""
    if nbytes > SMALL_NBYTES:
        return max(10, min(1000, REWRITTEN_NBYTES // (nbytes * ranks_per_core)))
    calls = 100_000 if level == "c" else 10_000
    return calls if ranks_per_core == 1 else calls // 20


def _samples(loop: Loop, options: Options, nbytes: int, ranks_per_core: int) -> NDArray[np.float64]:
    """Seconds per call, ascending; each the slowest rank's."""
    rewrite = nbytes > SMALL_NBYTES
    iters = options.iters or _affordable(loop, default_iters(nbytes, options.level, ranks_per_core))
    warmup = options.warmup or max(3, iters // 20)
    loop.seconds(warmup, rewrite)
    if options.level == "c" and not rewrite:
        batch = max(1, iters // BATCHES)
        mine = [loop.seconds(batch, False)[0] for _ in range(BATCHES)]
    else:
        mine = loop.seconds(iters, rewrite)
    slowest: NDArray[np.float64] = ringreduce.allreduce(np.array(mine), op=ringreduce.Max)
    return np.sort(slowest)


def _affordable(loop: Loop, iters: int) -> int:
    """Calls to time between hosts, where one may take a second: as many as BUDGET_S has room for."""
    if len(set(state.require().hosts)) == 1:
        return iters
    loop.seconds(1, False)
    mine = float(np.mean(loop.seconds(LEAST, False)))
    slowest_s = float(ringreduce.allreduce(np.array([mine]), op=ringreduce.Max)[0])
    return min(iters, max(LEAST, int(BUDGET_S / slowest_s)))


def _algorithm(options: Options, nbytes: int) -> str:
    """The one that ran. ringreduce.allreduce() makes its result in private memory, whatever the operand's is."""
    if options.collective == "barrier":
        return "barrier"
    makes_result = options.collective == "allreduce" and options.level == "python" and not options.in_place
    registered = options.buffers == "registered" and not makes_result
    group = ringreduce.global_process_set.group
    return group.algorithm(options.collective, nbytes, CODES[options.dtype], registered)
