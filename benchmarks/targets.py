"""From rows to ratios, and from ratios to whether the promised figures are reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

K, M = 1 << 10, 1 << 20
OURS = ("registered", "private")

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Ratio:
    """A promise: at these sizes, our lane is at least `least` times as fast as the best of these libraries."""

    text: str
    lane: str
    sizes: tuple[int, ...]
    least: float
    libraries: tuple[str, ...] = ("openmpi", "mpich")


RATIOS = (
    Ratio("registered, 2 to 128 MiB, against the best MPI", "registered", (2 * M, 16 * M, 128 * M), 3.0),
    Ratio("private, 64 KiB to 16 MiB, against the best MPI", "private", (64 * K, 256 * K, 2 * M, 16 * M), 0.95),
    Ratio("private, 128 MiB, against the best MPI", "private", (128 * M,), 2.0),
    Ratio("private, 8 B to 4 KiB, against Open MPI", "private", (8, 512, 4 * K), 1.0, ("openmpi",)),
)

TIMES: tuple[tuple[str, str, float], ...] = (
    ("python, 2 ranks", "p50", 3.0),
    ("python, 4 ranks", "p50", 15.0),
    ("python, 4 ranks", "p99", 1000.0),
    ("python, 8 ranks", "p50", 30.0),
    ("python, 8 ranks", "p99", 1000.0),
)
"""8 bytes: (lane, percentile, most microseconds)."""


@dataclass(frozen=True)
class Judgement:
    """One target and whether it is reached."""

    text: str
    reached: bool


def middle(rows: Rows, lane: str, nbytes: int, key: str = "p50") -> float | None:
    """The median over the rounds of a lane's time in microseconds; None when it was not measured."""
    times = [row["time_us"][key] for row in rows if row["lane"] == lane and row["nbytes"] == nbytes]
    return median(times) if times else None


def ratios(rows: Rows) -> list[dict[str, Any]]:
    """For every size, lane of ours and MPI: the median over the rounds of their p50 over ours, and its range."""
    time = {(row["lane"], row["nbytes"], row["round"]): row["time_us"]["p50"] for row in rows}
    peers = {row["lane"]: row["library"] for row in rows if row["library"] != "ringreduce"}
    found = []
    for nbytes in _sizes(rows, OURS[0]):
        rounds = sorted({turn for lane, size, turn in time if lane == OURS[0] and size == nbytes})
        for ours in OURS:
            for peer, library in peers.items():
                each = [time[peer, nbytes, turn] / time[ours, nbytes, turn] for turn in rounds]
                spread = {"median": median(each), "min": min(each), "max": max(each)}
                found.append({"nbytes": nbytes, "ours": ours, "peer": peer, "library": library, **spread})
    return found


def best(found: Rows, ours: str, nbytes: int, libraries: tuple[str, ...]) -> dict[str, Any] | None:
    """The ratio against the peer that is hardest to beat; None when none of the libraries was measured."""
    fitting = [r for r in found if (r["ours"], r["nbytes"]) == (ours, nbytes) and r["library"] in libraries]
    return min(fitting, key=lambda ratio: float(ratio["median"]), default=None)


def table(rows: Rows, found: Rows) -> str:
    """One line per size: everyone's median p50, then our two ratios to the best MPI."""
    peers = list(dict.fromkeys(row["lane"] for row in rows if row["library"] != "ringreduce"))
    names = [*OURS, *peers]
    heading = "".join(f"{name:>{_width(name)}}" for name in names)
    text = [f"{'p50 (us)':>10}{heading}   registered and private against the best MPI"]
    for nbytes in _sizes(rows, OURS[0]):
        cells = "".join(f"{_number(middle(rows, name, nbytes)):>{_width(name)}}" for name in names)
        against = [best(found, ours, nbytes, ("openmpi", "mpich")) for ours in OURS]
        ratio = "   ".join(f"{r['median']:.2f}x ({r['peer']})" for r in against if r)
        text.append(f"{_size(nbytes):>10}{cells}   {ratio}")
    return "\n".join(text)


def judge(rows: Rows, found: Rows) -> list[Judgement]:
    """Every target that this run has measured."""
    judged = []
    for promise in RATIOS:
        for nbytes in promise.sizes:
            ratio = best(found, promise.lane, nbytes, promise.libraries)
            if ratio:
                what = f"{promise.text}: {_size(nbytes)} {ratio['median']:.2f}x {ratio['peer']}"
                judged.append(_judged(f"{what}, at least {promise.least:g}x", ratio["median"] >= promise.least))
    for lane, key, most in TIMES:
        time = middle(rows, lane, 8, key)
        if time is not None:
            judged.append(_judged(f"8 B, {lane}: {key} {time:.2f} us, at most {most:g} us", time <= most))
    for lane in ("c, 4 ranks", "c, 8 ranks"):
        time = middle(rows, lane, 8)
        if time is not None:
            judged.append(Judgement(f"  --    8 B, {lane}: {time:.2f} us back to back", True))
    return judged


def _judged(text: str, reached: bool) -> Judgement:
    return Judgement(f"{'  ok  ' if reached else 'MISSED'}  {text}", reached)


def _sizes(rows: Rows, lane: str) -> list[int]:
    return sorted({row["nbytes"] for row in rows if row["lane"] == lane})


def _size(nbytes: int) -> str:
    for unit, name in ((M, "MiB"), (K, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def _width(name: str) -> int:
    return max(12, len(name) + 2)


def _number(time: float | None) -> str:
    return "-" if time is None else f"{time:.2f}" if time < 100 else f"{time:.0f}"
