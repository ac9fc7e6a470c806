"""The table on the terminal: the columns of nccl-tests, so that people who paste such tables can read it, and limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ringreduce.bench.collectives import COLLECTIVES

if TYPE_CHECKING:
    from ringreduce.bench.measure import Row
    from ringreduce.bench.options import Options

HEADINGS = (  # column by column as line() below
    "#       size         count      type   redop             time (us)               algbw    busbw  #wrong   limit",
    "#        (B)    (elements)                          p50        p99        min   (GB/s)   (GB/s)",
)


def head(options: Options, meta: dict[str, Any]) -> str:
    """The comment lines above the rows."""
    collective = COLLECTIVES[options.collective]
    binding = " | ".join(",".join(map(str, cores)) for cores in meta["binding"])
    ranks = meta["ranks"]
    on = f" on {meta['hosts']} hosts" if meta["hosts"] > 1 else ""
    what = [f"{ranks} rank{'' if ranks == 1 else 's'}{on}", f"{options.buffers} memory", f"level {options.level}"]
    if collective.in_place is None:
        what.append("in place" if options.in_place else "out of place")
    lines = [
        f"# ringreduce {meta['ringreduce']}: {options.collective}, {', '.join(what)}",
        f"# {meta['cpu']}, {meta['cores_online']} cores, ranks on {binding}; Linux {meta['kernel']}; {meta['isa']}",
        "#",
        *HEADINGS,
    ]
    return "\n".join(lines)


def line(options: Options, row: Row) -> str:
    """One row."""
    op = options.op if COLLECTIVES[options.collective].reduces else "none"
    times = "".join(f" {_time(value):>10}" for value in (row.p50_us, row.p99_us, row.min_us))
    wrong = "N/A" if row.wrong is None else row.wrong
    limit = "N/A" if row.fraction_of_limit is None else f"{row.fraction_of_limit:.2f}"
    return (
        f"{row.nbytes:>12}  {row.count:>12} {options.dtype:>9} {op:>7}{times}"
        f" {row.algbw_GBps:>8.2f} {row.busbw_GBps:>8.2f} {wrong:>7} {limit:>7}"
    )


def tail(rows: Sequence[Row]) -> str:
    """The comment lines below the rows."""
    busbw = sum(row.busbw_GBps for row in rows) / len(rows)
    return f"{verdict([row.wrong for row in rows])}\n# Avg bus bandwidth    : {busbw:.4g}"


def verdict(each: Sequence[int | None]) -> str:
    """The comment line about the wrong elements of each row, None where a row was not checked."""
    checked = [wrong for wrong in each if wrong is not None]
    wrong = sum(checked)
    return f"# Out of bounds values : {f'{wrong} FAILED' if wrong else '0 OK' if checked else 'not checked'}"


def _time(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 1000 else f"{microseconds:.1f}"
