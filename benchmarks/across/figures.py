"""From cells to figures: medians over the rounds, the limit, ratios within rounds, and whether the bytes crossed.

The limit: h hosts with one link each cannot sum S bytes with less than 2(h-1)/h * S sent by each of them on average
(docs/reference/benchmarks.md), however many ranks a host has; over goodput, what one TCP stream gets through such a
link, that is a time. A codec on the wire leaves SHARE of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from .pattern import SHARE
from .rounds import Cell


@dataclass(frozen=True)
class Row:
    """A competitor at a size in a layout, over all rounds. Times are seconds; None where nothing was measured."""

    hosts: int
    each: int
    nbytes: int
    competitor: str
    wire: str
    status: str
    """ok; void: measured, but fewer bytes crossed than must; else what the cells say, such as timeout."""
    rounds: int = 0
    """In which it was measured."""
    time_s: float | None = None
    p10_s: float | None = None
    p90_s: float | None = None
    limit_s: float | None = None
    fraction_of_limit: float | None = None
    ours_is: float | None = None
    """How many times as fast the first competitor was: the median of the rounds' ratios."""
    cpu_s_per_gb: float | None = None
    """Seconds of the processor, of all ranks together, for 10^9 bytes all-reduced (a call's size counts once)."""
    sent: dict[str, float] | None = None
    """By host, bytes per call through its link."""
    must_send: float = 0
    """Bytes per call and host, on average."""
    wrong: int = 0


def must_send(nbytes: int, hosts: int, wire: str = "none") -> float:
    """Bytes that each host has to send for one call, on average over the hosts."""
    return 2 * (hosts - 1) / hosts * nbytes * SHARE[wire]


def limit_s(cell: Cell, hosts: int) -> float:
    """The time that these bytes take through a link of this round's goodput."""
    return must_send(cell.nbytes, hosts, cell.competitor.wire) / cell.goodput


def is_void(cell: Cell, hosts: int) -> bool:
    """Whether the counters have seen fewer bytes than the calls must have sent: then something else was measured."""
    needed = must_send(cell.nbytes, hosts, cell.competitor.wire) * cell.calls
    return bool(cell.crossed.mean_sent < needed)


def rows(cells: Sequence[Cell], hosts: int) -> list[Row]:
    """By layout, size and competitor, in the order in which they came."""
    keys = dict.fromkeys((cell.each, cell.nbytes) for cell in cells)
    found = []
    for each, nbytes in keys:
        here = [cell for cell in cells if (cell.each, cell.nbytes) == (each, nbytes)]
        first = next(cell.competitor for cell in cells if cell.each == each)
        ours = {cell.round: cell.time_s for cell in here if cell.competitor == first and cell.status == "ok"}
        for competitor in dict.fromkeys(cell.competitor for cell in cells if cell.each == each and cell.round == 0):
            if mine := [cell for cell in here if cell.competitor == competitor]:  # none if the run broke off
                found.append(_row(mine, hosts, ours))
    return found


def _row(cells: Sequence[Cell], hosts: int, ours: dict[int, float]) -> Row:
    one = cells[0]
    what: dict[str, Any] = {
        "hosts": hosts, "each": one.each, "nbytes": one.nbytes,
        "competitor": one.competitor.name, "wire": one.competitor.wire,
        "must_send": must_send(one.nbytes, hosts, one.competitor.wire),
    }  # fmt: skip
    good = [cell for cell in cells if cell.status == "ok"]
    if not good:
        return Row(**what, status=", ".join(dict.fromkeys(cell.status for cell in cells)))
    by_rank = [np.concatenate(calls) for calls in zip(*(cell.seconds for cell in good), strict=True)]
    low, middle, high = (max(float(np.quantile(calls, q)) for calls in by_rank) for q in (0.1, 0.5, 0.9))
    ratios = [cell.time_s / ours[cell.round] for cell in good if cell.round in ours]
    calls = sum(cell.calls for cell in good)
    sent = {host: sum(cell.crossed.hosts[host].sent for cell in good) / calls for host in good[0].crossed.hosts}
    return Row(
        **what,
        rounds=len(good),
        status="void" if any(is_void(cell, hosts) for cell in good) else "ok",
        time_s=middle,
        p10_s=low,
        p90_s=high,
        limit_s=float(median(limit_s(cell, hosts) for cell in good)),
        fraction_of_limit=float(median(limit_s(cell, hosts) / cell.time_s for cell in good)),
        ours_is=float(median(ratios)) if ratios else None,
        cpu_s_per_gb=float(median(cell.cpu_s for cell in good)) / one.nbytes * 1e9,
        sent=sent,
        wrong=sum(cell.wrong for cell in good),
    )


def layout(row: Row) -> str:
    """Such as "4 hosts x 2 ranks"."""
    return f"{row.hosts} hosts x {row.each} rank{'' if row.each == 1 else 's'}"


def size(nbytes: int) -> str:
    """Such as "64 KiB"."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def cell_facts(cell: Cell, hosts: int) -> dict[str, Any]:
    """A cell as the JSON keeps it."""
    ok = cell.status == "ok"
    return {
        "round": cell.round,
        "each": cell.each,
        "nbytes": cell.nbytes,
        "competitor": cell.competitor.name,
        "status": "void" if ok and is_void(cell, hosts) else cell.status,
        "time_s": cell.time_s if ok else None,
        "cpu_s": cell.cpu_s if ok else None,
        "goodput": cell.goodput,
        "calls": cell.calls,
        "wrong": cell.wrong,
        "crossed": {host: [carried.sent, carried.received] for host, carried in cell.crossed.hosts.items()},
        **({"text": cell.text} if cell.text else {}),
    }
