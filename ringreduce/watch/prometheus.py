"""The figures in the text format of Prometheus, for the textfile collector of its node_exporter.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline.whole_file import is_file_behind_descriptor, whole_file
from ringreduce.watch.board import Board
from ringreduce.watch.figures import JobFigures, RankFigures

_UP = {"dead": 0.0, "left": 0.0, "removed": 0.0, "unseen": None}
"""Of a rank's process, by its state; 1.0 in all others. None: not known."""


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str
    value: Callable[[RankFigures], float | None]


def _counter(name: str, counter: str, help_text: str) -> _Metric:
    return _Metric(f"ringreduce_{name}_total", "counter", help_text, lambda rank: rank.counters.get(counter))


_METRICS = (
    _counter("operations", "operations", "Operations that the rank has submitted since init()."),
    _counter("moved_bytes", "bytes_moved", "Bytes of operands of operations that have ended on the rank."),
    _counter("bus_bytes", "bytes_on_bus", "What busbw is reckoned from, by the factors of nccl-tests."),
    _counter("wire_bytes", "bytes_on_wire", "Bytes that the rank has sent to other hosts."),
    _counter("waited_seconds", "waited_s", "Time in which the rank waited in a call."),
    _counter("late_seconds", "late_s", "Time in which most others waited for the rank."),
    _Metric("ringreduce_cpu_share", "gauge", "Cores that the rank's process uses.", lambda rank: rank.cpu_share),
    _Metric("ringreduce_up", "gauge", "1: the rank's process lives.", lambda rank: _UP.get(rank.state, 1.0)),
)


def write_again_and_again(board: Board, path: Path, interval_s: float) -> int:
    """Writes the file until the process is interrupted, and removes it then: its figures would be old.

    While no job runs, there are no figures in it. What is no regular file, a pipe say, stays, and so does a link to
    the file. A file behind /dev/stdout, or another descriptor, gets the figures of every round, and stays. Where the
    first write fails, that is an error; a later one is tried again, and stderr says so.

    Raises InvalidArgumentError where the file cannot be written.
    """
    has_written, has_said = False, False
    try:
        while True:
            jobs = board.look()
            try:
                with whole_file(path) as file:
                    file.write(text(jobs).encode())
                has_written = True
            except (InvalidArgumentError, OSError) as error:
                # Of a pipe that nobody reads any more, or a device, the next write is no better.
                if not has_written or (os.path.exists(path) and not os.path.isfile(path)):
                    raise
                # Once: a disk that is nearly full has room for the file in every second round, where none is yet.
                if not has_said:
                    print(f"ringreduce top: {error}; tried again every {interval_s:g} s", file=sys.stderr)
                _take_away_figures(path, is_quiet=has_said)
                has_said = True
            time.sleep(interval_s)
    finally:
        _take_away_figures(path)


def _take_away_figures(path: Path, is_quiet: bool = False) -> None:
    """Removes the file, or empties it where its folder cannot be written. Raises nothing: what ends us goes on."""
    try:
        if not path.is_file() or is_file_behind_descriptor(path):
            return
        try:
            path.resolve().unlink()
        except OSError:
            os.truncate(path, 0)
    except FileNotFoundError:
        pass
    except OSError as error:
        if not is_quiet:
            print(f"ringreduce top: {path} keeps its last figures: {error.strerror}", file=sys.stderr)


def text(jobs: Sequence[JobFigures]) -> str:
    """All figures. A job goes by the number of its first process on this host."""
    return "".join(f"{line}\n" for line in _lines(jobs))


def _lines(jobs: Sequence[JobFigures]) -> Iterator[str]:
    for metric in _METRICS:
        yield from _head(metric.name, metric.kind, metric.help)
        for job in jobs:
            for rank in job.ranks:
                # Of a rank elsewhere its own host's exporter has the figures: sums over hosts count each rank once.
                if rank.is_here and (value := metric.value(rank)) is not None:
                    yield f'{metric.name}{{pid="{job.pid}",rank="{rank.rank}"}} {value!r}'
    yield from _head("ringreduce_link_busy_share", "gauge", "Share of the time in which the link had unsent bytes.")
    for job in jobs:
        for link in job.links:
            ends = f'from_host="{link.from_host}",to_host="{link.to_host}"'
            yield f'ringreduce_link_busy_share{{pid="{job.pid}",{ends}}} {link.busy_share!r}'
    yield from _head(
        "ringreduce_host_late_seconds_total", "counter", "Time in which rank 0's host waited for the host."
    )
    for job in jobs:
        for host, late_s in _late_hosts(job).items():
            yield f'ringreduce_host_late_seconds_total{{pid="{job.pid}",host="{host}"}} {late_s!r}'
    yield from _head("ringreduce_failed", "gauge", "1: the job has failed.")
    for job in jobs:
        yield f'ringreduce_failed{{pid="{job.pid}"}} {int(bool(job.failure))}'


def _late_hosts(job: JobFigures) -> dict[int, float]:
    """How long others waited for each other host: rank 0's host alone sees that, of the lowest rank there."""
    found: dict[int, float] = {}
    for rank in job.ranks:
        if not rank.is_here and rank.state != "elsewhere" and "seen_late_s" in rank.counters:
            found.setdefault(rank.host, rank.counters["seen_late_s"])
    return found


def _head(name: str, kind: str, help_text: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"
