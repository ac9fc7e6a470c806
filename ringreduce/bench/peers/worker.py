"""One rank of a peer that is called from Python: checks, times, and on rank 0 prints one JSON line.

    LAUNCHER python -m ringreduce.bench.peers.worker MODULE CELL

MODULE has connect() -> Endpoint (an adapter of this package, or a dotted name); CELL is a Cell as JSON. The method is
that of `ringreduce bench --level python`: every call is timed alone; above 4 KiB the input is rewritten and a barrier
passed before; a sample is the slowest rank's.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES
from ringreduce.bench.loops import timed
from ringreduce.bench.memory import private
from ringreduce.bench.oracle import DTYPES
from ringreduce.bench.peers.cell import Cell
from ringreduce.bench.percentile import p99
from ringreduce.job.environment import detect

Array = NDArray[Any]


class Endpoint(Protocol):
    """This rank of a library that is up and running."""

    rank: int
    size: int

    def operation(self, collective: str, src: Array, dst: Array, op: str) -> Callable[[], Any]:
        """The collective, ready to be called again and again. dst is src where the collective works in place.

        A call returns its output where that is a new array, or something that NumPy takes for one; None: it is in dst.
        """

    def barrier(self) -> None:
        """Passes when every rank is here."""

    def largest(self, values: Array) -> Array:
        """Element by element, the largest of all ranks' float64 values."""

    def close(self) -> None:
        """Leaves the job."""


def main(module: str, text: str) -> int:
    """Measures the cell. Returns 0."""
    fields = json.loads(text)
    cell = Cell(**{**fields, "cores": tuple(fields["cores"]), "hosts": tuple(map(tuple, fields["hosts"]))})
    name = module if "." in module else f"ringreduce.bench.peers.{module}"
    shares = cell.shares  # ringrun's too; the launcher may have bound the ranks to others
    place = detect(network=True) if shares else None
    # Another size where the bench itself runs as a rank of another launcher, such as srun.
    is_placed = place is not None and place.size == cell.ranks
    if place is not None and is_placed:
        os.sched_setaffinity(0, shares[place.rank])  # before the library starts threads, which inherit it
    endpoint: Endpoint = importlib.import_module(name).connect()
    if place is not None and not is_placed:
        os.sched_setaffinity(0, shares[endpoint.rank])
    if endpoint.size != cell.ranks:
        raise RuntimeError(f"{module}: {endpoint.size} ranks have met, not {cell.ranks}")
    collective = COLLECTIVES[cell.collective]
    storage = DTYPES[cell.dtype][0]
    part = cell.count // cell.ranks
    operands = [private(n, storage) for n in collective.operand_counts(cell.count, cell.ranks, cell.in_place)]
    src, dst = operands[0], operands[-1]
    src.fill(0)
    dst.fill(0)
    call = endpoint.operation(cell.collective, src, dst, cell.op)

    def check() -> int:
        """Elements of this rank that one call makes wrong."""
        oracle = collective.oracle(cell.dtype, cell.op, cell.ranks)
        oracle.fill(src, endpoint.rank)
        result = call()
        output = dst if result is None else np.asarray(result)
        wrong = collective.wrong(oracle, endpoint.rank, part, output, dst.size) + abs(output.size - dst.size)
        src.fill(0)
        return wrong

    wrong = check() if cell.check else 0
    rewritten = src if cell.nbytes > SMALL_NBYTES else None

    def pace(calls: int) -> float:
        """Seconds of a call with what comes before it, the slowest rank's mean of so many."""
        start = time.perf_counter()
        timed(call, rewritten, endpoint.barrier, calls)
        return float(endpoint.largest(np.array([(time.perf_counter() - start) / calls]))[0])

    warm = pace(cell.warming(pace(1)))
    mine = timed(call, rewritten, endpoint.barrier, cell.affordable(warm))
    wrong += check() if cell.check else 0
    *largest, most_wrong = endpoint.largest(np.array([*mine, float(wrong)]))  # wrong of one rank: 0 is what matters
    slowest = np.sort(largest)
    if endpoint.rank == 0:
        micro = {"min": slowest[0], "p50": slowest[slowest.size // 2], "p99": p99(slowest)}
        print(json.dumps({**{key: value * 1e6 for key, value in micro.items()}, "wrong": int(most_wrong)}), flush=True)
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
