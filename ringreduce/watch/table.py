"""A job's figures as a table of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ringreduce.timeline.wording import counted, nbytes, percent, printable
from ringreduce.watch.figures import JobFigures, RankFigures

MOST_LINKS = 8
BUSY_SHARE = 0.05
"""Of links that are less busy nothing is said."""

_HOST = "HOST"
_HEADINGS = ("RANK", "PID", "CPU", "OPS/S", "BYTES/S", "WAITS", "LATE", "STATE")
_MOST_OF_A_LINE = 2000
_MOST_OF_A_COMMAND = 200


def lines(job: JobFigures) -> list[str]:
    """The job, a row for each rank, and what is to be said of it."""
    rows = [_HEADINGS, *(_row(rank) for rank in job.ranks)]
    if job.hosts > 1:
        hosts = [_HOST, *(printable(rank.hostname or str(rank.host), 24) for rank in job.ranks)]
        rows = [(row[0], host, *row[1:]) for row, host in zip(rows, hosts, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    text = [_title(job)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=False)]
        text.append("  ".join([*cells, row[-1]]))
    names = {rank.host: printable(rank.hostname or str(rank.host), 24) for rank in job.ranks}
    for link in job.links[:MOST_LINKS]:
        if link.busy_share >= BUSY_SHARE:
            text.append(
                f"link {names.get(link.from_host, link.from_host)} -> {names.get(link.to_host, link.to_host)}: busy "
                f"{percent(link.busy_share)}, {nbytes(link.bytes_per_s)}/s"
            )
    if job.late:
        text.append(printable(job.late, _MOST_OF_A_LINE))
    if job.failure:
        text.append("failed: " + printable(job.failure, _MOST_OF_A_LINE))
    if job.has_ended:
        text.append("the job has ended")
    return text


def state(rank: RankFigures) -> str:
    """In words: "waiting in allreduce 'loss' #12 for ranks 1, 3"."""
    if rank.state == "elsewhere":
        return "on another host, not heard of: run `ringreduce top` there, or on rank 0's host"
    if rank.state == "idle":
        return "idle: waits for input, a disk, a lock or a device"
    text = rank.state
    if rank.operation:
        text += f" in {printable(rank.operation, 120)}"
    if rank.missing:
        text += f" for {_listed(rank.missing)}"
    if rank.cause:
        text += f": {printable(rank.cause, 400)}"
    return text


def _title(job: JobFigures) -> str:
    parts = [f"job {job.pid}", printable(job.command, _MOST_OF_A_COMMAND), counted(job.size, "rank")]
    if job.hosts > 1:
        parts.append(counted(job.hosts, "host"))
    if job.groups:
        parts.append(f"{counted(job.groups, 'process group')} beside the default one")
    parts.append(f"for {_clock(job.running_s)}")
    return "  ".join(filter(None, parts))


def _row(rank: RankFigures) -> tuple[str, ...]:
    return (
        str(rank.rank),
        _known(rank.pid, str),
        _known(rank.cpu_share, lambda share: f"{100 * share:.0f} %"),
        _known(rank.operations_per_s, lambda rate: f"{rate:.0f}"),
        _known(rank.bytes_per_s, nbytes),
        _known(rank.waited_share, percent),
        _known(rank.late_share, percent),
        state(rank),
    )


_Value = TypeVar("_Value")


def _known(value: _Value | None, text: Callable[[_Value], str]) -> str:
    return "-" if value is None else text(value)


def _listed(ranks: Sequence[int]) -> str:
    most = 8
    text = ", ".join(str(rank) for rank in ranks[:most])
    if len(ranks) > most:
        text += f" and {len(ranks) - most} others"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _clock(seconds: float) -> str:
    """ "0:07", "2:13:05"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
