"""What is promised across hosts at 1 Gbit/s, and whether a run reached it. One line each: what, reached, promised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .figures import Row, layout, size

OURS = "ringreduce"
LARGE_NBYTES = 4 << 20
SMALL_NBYTES = (4 << 10, 256 << 10)
FRACTION = 0.97  # of the limit, from LARGE_NBYTES
GLOO = 2.0  # times as fast, at SMALL_NBYTES
CODECS = {"fp16": 1.9, "int8": 3.3}  # times as fast as float32, from LARGE_NBYTES


@dataclass(frozen=True)
class Verdict:
    """One promised figure."""

    what: str
    value: str
    promise: str
    reached: bool


def judge(rows: Sequence[Row]) -> Iterator[Verdict]:
    """For all layouts and sizes that were measured, and are not void."""
    for row in rows:
        if row.time_s is None or row.status == "void":
            continue
        where = f"{layout(row)}, {size(row.nbytes)}"
        if row.competitor == OURS and row.nbytes >= LARGE_NBYTES and row.fraction_of_limit is not None:
            yield _verdict(f"{where}: fraction of the limit", row.fraction_of_limit, FRACTION, "")
        if row.ours_is is None:
            continue
        if row.competitor.startswith("gloo") and SMALL_NBYTES[0] <= row.nbytes <= SMALL_NBYTES[1]:
            yield _verdict(f"{where}: beside Gloo", row.ours_is, GLOO, "x")
        if row.wire in CODECS and row.nbytes >= LARGE_NBYTES:
            yield _verdict(f"{where}: {row.wire} beside float32", 1 / row.ours_is, CODECS[row.wire], "x")


def _verdict(what: str, value: float, least: float, unit: str) -> Verdict:
    return Verdict(what, f"{value:.2f}{unit}", f">= {least}{unit}", value >= least)
