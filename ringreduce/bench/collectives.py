"""The collectives that can be measured: one row each, everything that depends on which one it is.

`nbytes` of a row is the larger of a rank's operands, as in nccl-tests: an all-gather of 1 MiB on 4 ranks gathers
256 KiB from each. Bus bandwidth is derived in docs/reference/benchmarks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.oracle import BLOCK, Integers, Oracle, Reals

SMALL_NBYTES = 4096
"""Up to here calls are timed back to back (from Python each alone), above after rewriting the input."""

Expectation = Callable[[Oracle, int, int, Integers], Reals]
"""(oracle, rank, part, positions in this rank's output) -> values; part is count / ranks."""


@dataclass(frozen=True)
class Collective:
    """What distinguishes one collective from another, seen from outside.

    Attributes:
        bus: busbw / algbw for n ranks.
        reduces: has an op.
        divided: count must be a multiple of the number of ranks.
        input_parts, output_parts: 1 for an operand of one part (count / ranks), 0 for one of the full count.
        in_place: always (True), never (False), or as asked (None).
    """

    name: str
    bus: Callable[[int], float]
    expected: Expectation
    reduces: bool = False
    divided: bool = False
    input_parts: int = 0
    output_parts: int = 0
    in_place: bool | None = False

    def count(self, nbytes: int, itemsize: int, ranks: int) -> int:
        """Elements for about nbytes: at least one, and a whole number of parts."""
        count = max(1, nbytes // itemsize) if nbytes else 0
        return -(-count // ranks) * ranks if self.divided else count

    def is_in_place(self, asked: bool) -> bool:
        """Whether the result replaces the input, where it is asked for or not."""
        return asked if self.in_place is None else self.in_place

    def operand_counts(self, count: int, ranks: int, in_place: bool) -> list[int]:
        """Elements of a rank's input and of its output; of the one operand where it is both."""
        part = count // ranks
        given = part if self.input_parts else count
        return [given] if in_place else [given, part if self.output_parts else count]

    def oracle(self, dtype: str, op: str, ranks: int) -> Oracle:
        """What its operands hold. What only moves them needs no room for a sum."""
        return Oracle(dtype, op if self.reduces else "max", ranks)

    def wrong(self, oracle: Oracle, rank: int, part: int, output: NDArray[Any], size: int) -> int:
        """How many of the size elements of a rank's output are not what they must be."""
        count = 0
        for start in range(0, size, BLOCK):
            positions = np.arange(start, min(start + BLOCK, size), dtype=np.int64)
            count += oracle.wrong(output, start, self.expected(oracle, rank, part, positions))
        return count


def _reduced(oracle: Oracle, rank: int, part: int, at: Integers) -> Reals:
    return oracle.reduced(at)


def _own_part_reduced(oracle: Oracle, rank: int, part: int, at: Integers) -> Reals:
    return oracle.reduced(rank * part + at)


def _gathered(oracle: Oracle, rank: int, part: int, at: Integers) -> Reals:
    return oracle.inputs(at // part, at % part).astype(np.float64)


def _roots(oracle: Oracle, rank: int, part: int, at: Integers) -> Reals:
    return oracle.inputs(0, at).astype(np.float64)


def _exchanged(oracle: Oracle, rank: int, part: int, at: Integers) -> Reals:
    return oracle.inputs(at // part, rank * part + at % part).astype(np.float64)


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


COLLECTIVES = {
    row.name: row
    for row in (
        Collective("allreduce", lambda n: 2 * _others(n), _reduced, reduces=True, in_place=None),
        Collective("reducescatter", _others, _own_part_reduced, reduces=True, divided=True, output_parts=1),
        Collective("allgather", _others, _gathered, divided=True, input_parts=1),
        Collective("broadcast", lambda n: 1.0, _roots, in_place=True),
        Collective("alltoall", _others, _exchanged, divided=True),
        Collective("barrier", lambda n: 0.0, _roots, in_place=True),
    )
}
