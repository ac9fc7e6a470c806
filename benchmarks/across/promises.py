"""What is promised across hosts, and whether a run reached it. One line each: what, reached, promised.

Links with a rate are the limit, so what is promised there is time; links as fast as memory leave the processor as the
limit, so there it is the processor's seconds and the goodput beside the best of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from .figures import Row, layout, size

OURS = "ringreduce"
ENCRYPTED = "ringreduce over tcp encrypted"
GLOO, OPEN_MPI, MPICH = "gloo", "openmpi", "mpich"
KIB, MIB = 1 << 10, 1 << 20
LARGE_NBYTES = 4 * MIB
ROUND = 0.005  # ratios are judged as they are printed, with two digits


@dataclass(frozen=True)
class Verdict:
    """One promised figure."""

    what: str
    value: str
    promise: str
    reached: bool


def judge(rows: Sequence[Row], rate: str) -> Iterator[Verdict]:
    """For all layouts and sizes that were measured, and are not void.

    Args:
        rate: of the links, as tc spells it; "none" = as fast as memory.
    """
    measured = [row for row in rows if row.time_s is not None and row.status != "void"]
    for (_, nbytes), group in groupby(measured, key=lambda row: (row.each, row.nbytes)):
        by_name = {row.competitor: row for row in group}
        if OURS in by_name:
            where = f"{layout(by_name[OURS])}, {size(nbytes)}"
            for verdict in _of_work(by_name, nbytes) if rate == "none" else _of_time(by_name, nbytes):
                yield Verdict(f"{where}: {verdict.what}", verdict.value, verdict.promise, verdict.reached)


def _of_time(rows: Mapping[str, Row], nbytes: int) -> Iterator[Verdict]:
    fraction = rows[OURS].fraction_of_limit
    if fraction is not None and nbytes >= LARGE_NBYTES:
        yield _at_least("fraction of the limit", fraction, 0.97)
    elif fraction is not None and nbytes == 256 * KIB:
        yield _at_least("fraction of the limit", fraction, 0.9)
    gloo, mpi = _least(rows, GLOO), _least(rows, OPEN_MPI, MPICH)
    is_small = 4 * KIB <= nbytes <= 64 * KIB
    if gloo is not None:
        yield _at_least("beside Gloo", gloo, 2.0 if is_small else 1.0, "x")
    if mpi is not None:
        yield _at_least("beside the best MPI", mpi, 1.2 if is_small else 1.0, "x")
    yield from _encrypted(rows, 1.0)
    if nbytes < LARGE_NBYTES:
        return
    for row in rows.values():
        if row.ours_is is not None and (least := {"fp16": 1.9, "int8": 3.3}.get(row.wire)):
            yield _at_least(f"{row.wire} beside float32", 1 / row.ours_is, least, "x")


def _of_work(rows: Mapping[str, Row], nbytes: int) -> Iterator[Verdict]:
    if nbytes < LARGE_NBYTES:
        return
    ours = rows[OURS].cpu_s_per_gb
    for name, most in ((GLOO, 0.6), (OPEN_MPI, 0.8)):
        theirs = [row.cpu_s_per_gb for row in _of(rows, name) if row.cpu_s_per_gb]
        if ours is not None and theirs:
            yield _at_most(f"the processor's seconds beside {name}", ours / min(theirs), most)
    best = _least(rows, GLOO, OPEN_MPI, MPICH)
    if best is not None:
        yield _at_least("GB/s beside the best of the others", best, 1.5, "x")
    yield from _encrypted(rows, 2.0)


def _encrypted(rows: Mapping[str, Row], most: float) -> Iterator[Verdict]:
    if ENCRYPTED in rows and rows[ENCRYPTED].ours_is is not None:
        yield _at_most("encrypted, its time beside that of plain", rows[ENCRYPTED].ours_is or 0.0, most)


def _of(rows: Mapping[str, Row], *names: str) -> list[Row]:
    return [row for row in rows.values() if row.competitor.startswith(names)]


def _least(rows: Mapping[str, Row], *names: str) -> float | None:
    """How many times as fast as the fastest of these ours was; None: none of them was measured."""
    return min((row.ours_is for row in _of(rows, *names) if row.ours_is is not None), default=None)


def _at_least(what: str, value: float, least: float, unit: str = "") -> Verdict:
    return Verdict(what, f"{value:.2f}{unit}", f">= {least}{unit}", value >= least - ROUND)


def _at_most(what: str, value: float, most: float) -> Verdict:
    return Verdict(what, f"{value:.2f}x", f"<= {most}x", value <= most + ROUND)
