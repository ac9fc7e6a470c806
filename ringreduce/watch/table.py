"""A job's figures as a table of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ringreduce.timeline.wording import counted, percent, printable, rate
from ringreduce.watch.figures import JobFigures, RankFigures, title

MOST_LINKS = 8
BUSY_SHARE = 0.05
"""Of links that are less busy nothing is said."""

_HOST = "HOST"
_HEADINGS = ("RANK", "PID", "CPU", "OPS/S", "BUSBW", "WAITS", "LATE", "STATE")
_MOST_OF_A_LINE = 2000


def lines(job: JobFigures) -> list[str]:
    """The job, a row for each rank, and what is to be said of it."""
    return [title(job), *rows(job), *said(job)]


def rows(job: JobFigures, most: int | None = None) -> list[str]:
    """A row for each rank, below the headings; of more than `most`, those for which the others waited longest."""
    latest = sorted(job.ranks, key=lambda rank: -(rank.late_share or 0.0))[:most]
    shown = sorted(latest, key=lambda rank: rank.rank)
    cells = [_HEADINGS, *(_row(rank) for rank in shown)]
    if job.hosts > 1:
        hosts = [_HOST, *map(_host, shown)]
        cells = [(row[0], host, *row[1:]) for row, host in zip(cells, hosts, strict=True)]
    widths = [max(map(len, column)) for column in list(zip(*cells, strict=True))[:-1]]
    text = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in cells
    ]
    if len(shown) < len(job.ranks):
        less = ", for which the others waited less" if shown else ""
        text.append(f"and {counted(len(job.ranks) - len(shown), 'more rank')}{less}")
    return text


def said(job: JobFigures) -> list[str]:
    """Sentences, and busy links."""
    text = []
    names = {rank.host: _host(rank) for rank in job.ranks}
    for link in job.links[:MOST_LINKS]:
        if link.busy_share >= BUSY_SHARE:
            text.append(
                f"link {names.get(link.from_host, link.from_host)} -> {names.get(link.to_host, link.to_host)}: busy "
                f"{percent(link.busy_share)}, {rate(link.bytes_per_s)}"
            )
    if job.unsampled:
        text.append(job.unsampled)
    if job.late:
        text.append(printable(job.late, _MOST_OF_A_LINE))
    if job.failure:
        text.append("failed: " + printable(job.failure, _MOST_OF_A_LINE))
    if job.has_ended:
        text.append("the job has ended")
    return text


def _host(rank: RankFigures) -> str:
    return printable(rank.hostname or str(rank.host), 24)


def _row(rank: RankFigures) -> tuple[str, ...]:
    return (
        str(rank.rank),
        _known(rank.pid, str),
        _known(rank.cpu_share, lambda share: f"{100 * share:.0f} %"),
        _known(rank.operations_per_s, lambda number: f"{number:.0f}"),
        _known(rank.bus_bytes_per_s, rate),
        _known(rank.waited_share, percent),
        _known(rank.late_share, percent),
        rank.text,
    )


_Value = TypeVar("_Value")


def _known(value: _Value | None, text: Callable[[_Value], str]) -> str:
    return "-" if value is None else text(value)
