"""The table of a comparison: a line per competitor and size, with the columns of nccl-tests and our speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ringreduce.bench import comparison
from ringreduce.bench.oracle import DTYPES
from ringreduce.bench.peers.cell import Absent
from ringreduce.bench.table import verdict

_FORMAT = "#{:>11} {:>10} {:>8} {:>7}  {:<31} {:<6} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}   {}"
_COLUMNS = {  # name: unit
    "size": "(B)",
    "count": "(elements)",
    "type": "",
    "redop": "",
    "library": "",
    "level": "",
    "p50": "(us)",
    "p99": "(us)",
    "min": "(us)",
    "algbw": "(GB/s)",
    "busbw": "(GB/s)",
    "#wrong": "",
    "limit": "",
    "ours is": "registered / private",
}
HEADINGS = (_FORMAT.format(*_COLUMNS), _FORMAT.format(*_COLUMNS.values()))


def head(meta: dict[str, Any], absent: Sequence[Absent]) -> str:
    """The comment lines above: what is compared, on what, and who is not here."""
    where = f"on {','.join(meta['hosts'])}" if meta["hosts"] else f"cores {','.join(map(str, meta['cores']))}"
    what = f"{meta['collective']}, {meta['ranks']} ranks, {where}"
    lines = [
        f"# ringreduce {meta['ringreduce']} beside its peers: {what}, {meta['rounds']} rounds",
        f"# {meta['cpu']}, {meta['cores_online']} cores, Linux {meta['kernel']}, {meta['isa']}",
        *(f"# absent: {one.name}: {one.advice}" for one in absent),
        "# the first round, as it comes; medians over all rounds below",
        *HEADINGS,
    ]
    return "\n".join(lines)


def block(meta: dict[str, Any], turns: comparison.Turns) -> str:
    """The lines of everyone's turn at one size."""
    found = comparison.document(meta, turns)
    return "\n".join(lines(found, *comparison.sizes(found)))


def tail(found: comparison.Document) -> str:
    """Medians of all rounds, and per size the peer that is hardest to beat."""
    text = ["#", f"# medians of {found['meta']['rounds']} rounds", *HEADINGS]
    for nbytes in comparison.sizes(found):
        text += lines(found, nbytes)
        for level in dict.fromkeys(level for _, level in comparison.competitors(found)):
            ours = dict.fromkeys(
                competitor
                for competitor, at in comparison.competitors(found)
                if at == level and comparison.is_ours(competitor)
            )
            against = [(competitor, comparison.best(found["ratios"], competitor, level, nbytes)) for competitor in ours]
            said = [f"{competitor.split()[-1]} {r['median']:.2f}x {r['peer']}" for competitor, r in against if r]
            if said:
                text.append(f"# best peer at level {level}: {', '.join(said)}")
    return "\n".join([*text, verdict([row["wrong"] for row in found["results"]])])


def lines(found: comparison.Document, nbytes: int) -> list[str]:
    """One size: a line for every competitor."""
    text = []
    meta = found["meta"]
    count = nbytes // np.dtype(DTYPES[meta["dtype"]][0]).itemsize
    what = f"{nbytes:>12} {count:>10} {meta['dtype']:>8} {meta['op'] or 'none':>7}"
    for competitor, level in comparison.competitors(found):
        start = f"{what}  {competitor[:31]:<31} {level:<6}"
        row = comparison.middle(found["results"], competitor, level, nbytes)
        if row is None:
            text.append(f"{start} {_status(found, competitor, level, nbytes)}")
            continue
        times = "".join(f" {_time(row['time_us'][key]):>9}" for key in ("p50", "p99", "min"))
        wrong = "N/A" if row["wrong"] is None else row["wrong"]
        speed = f" {row['algbw_GBps']:>7.2f} {row['busbw_GBps']:>7.2f} {wrong:>7}"
        limit = f"{row['fraction_of_limit']:>7.2f}" if row["fraction_of_limit"] is not None else " " * 7
        text.append(f"{start}{times}{speed}{limit}   {_ours(found, competitor, level, nbytes)}".rstrip())
    return text


def _status(found: comparison.Document, competitor: str, level: str, nbytes: int) -> str:
    key = (competitor, level, nbytes)
    cells = [cell for cell in found["cells"] if (cell["competitor"], cell["level"], cell["nbytes"]) == key]
    return ", ".join(dict.fromkeys(cell["status"] for cell in cells))


def _ours(found: comparison.Document, competitor: str, level: str, nbytes: int) -> str:
    by_memory = {
        r["ours"].split()[-1]: f"{r['median']:.2f}x"
        for r in found["ratios"]
        if (r["peer"], r["level"], r["nbytes"]) == (competitor, level, nbytes)
    }
    return " / ".join(by_memory[memory] for memory in ("registered", "private") if memory in by_memory)


def _time(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"
