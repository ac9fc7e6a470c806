"""From the cells of a comparison to its document: medians over the rounds, ratios formed within them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from ringreduce.bench.peers.cell import Outcome, Peer

Turns = Sequence[tuple[int, Peer, Outcome]]
Document = dict[str, Any]


def document(meta: dict[str, Any], turns: Turns) -> Document:
    """{"meta", "results": every row of every round, "cells": every cell's status, "ratios"}."""
    rows = [
        {"competitor": competitor.name, "round": turn, **outcome.row}
        for turn, competitor, outcome in turns
        if outcome.row is not None
    ]
    cells = [
        {
            "competitor": competitor.name,
            "level": competitor.facts["level"],
            "nbytes": outcome.cell.nbytes,
            "round": turn,
            "status": outcome.status,
            "text": outcome.text,
        }
        for turn, competitor, outcome in turns
    ]
    return {"meta": meta, "results": rows, "cells": cells, "ratios": ratios(rows)}


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every size, one of ours and a peer of the same level: the median, least and largest over the rounds of the
    peer's p50 over ours. More than 1: ours is faster."""
    times = {(row["competitor"], row["level"], row["nbytes"], row["round"]): row["time_us"]["p50"] for row in rows}
    found = []
    for ours, peer, level, nbytes in _pairs(rows):
        each = [
            time / times[ours, level, nbytes, turn]
            for (competitor, at, size, turn), time in times.items()
            if (competitor, at, size) == (peer, level, nbytes) and (ours, level, nbytes, turn) in times
        ]
        if each:
            spread = {"median": median(each), "min": min(each), "max": max(each)}
            found.append({"nbytes": nbytes, "level": level, "ours": ours, "peer": peer, **spread})
    return found


def best(found: Iterable[dict[str, Any]], ours: str, level: str, nbytes: int) -> dict[str, Any] | None:
    """The ratio against the peer that is hardest to beat at a size; None when there is none."""
    fitting = [r for r in found if (r["ours"], r["level"], r["nbytes"]) == (ours, level, nbytes)]
    return min(fitting, key=lambda ratio: float(ratio["median"]), default=None)


def middle(rows: Iterable[dict[str, Any]], competitor: str, level: str, nbytes: int) -> dict[str, Any] | None:
    """A competitor's row at a size with the median of every figure over the rounds; None when there is no row.

    "wrong" is the sum of the rounds that were checked; None when none was.
    """
    mine = [row for row in rows if (row["competitor"], row["level"], row["nbytes"]) == (competitor, level, nbytes)]
    if not mine:
        return None
    checked = [row["wrong"] for row in mine if row["wrong"] is not None]
    fractions = [row["fraction_of_limit"] for row in mine if row["fraction_of_limit"] is not None]
    return {
        **mine[0],
        "time_us": {key: median(row["time_us"][key] for row in mine) for key in ("min", "p50", "p99")},
        "algbw_GBps": median(row["algbw_GBps"] for row in mine),
        "busbw_GBps": median(row["busbw_GBps"] for row in mine),
        "wrong": sum(checked) if checked else None,
        "fraction_of_limit": median(fractions) if fractions else None,
    }


def competitors(found: Document) -> list[tuple[str, str]]:
    """(competitor, level) in the order of the run."""
    return list(dict.fromkeys((cell["competitor"], cell["level"]) for cell in found["cells"]))


def sizes(found: Document) -> list[int]:
    """Sizes in bytes, ascending."""
    return sorted({cell["nbytes"] for cell in found["cells"]})


def is_ours(competitor: str) -> bool:
    """Whether a competitor is ringreduce's."""
    return competitor.startswith("ringreduce ")


def _pairs(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str, int]]:
    keys = dict.fromkeys((row["competitor"], row["level"], row["nbytes"]) for row in rows)
    return [
        (ours, peer, level, nbytes)
        for ours, level, nbytes in keys
        if is_ours(ours)
        for peer, other, size in keys
        if not is_ours(peer) and (other, size) == (level, nbytes)
    ]
