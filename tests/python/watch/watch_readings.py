"""Readings of a job that never was, for tests of what `ringreduce top` says of them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from ringreduce.watch.figures import JobFigures, Watched
from ringreduce.watch.jobs import Job, RankReading, Reading
from ringreduce.watch.processes import Process

COUNTERS = {"operations": 0, "bytes_moved": 0, "bytes_on_bus": 0, "bytes_on_wire": 0}
RANK = RankReading(
    0, 0, "n1", True, 0.0, 4711, Process("S", 0.0, 0.0), "present", False, "", None, 0.0, 0.0, 0.0, COUNTERS
)


def figures(*readings: Reading, hosts: int = 1) -> JobFigures:
    """The last figures of a job that was read so."""
    left = list(readings)
    job = SimpleNamespace(
        pid=4711, command="python train.py", size=len(left[0].ranks), hosts=hosts, groups=0, runs_for_s=lambda: 7985.0,
        read=lambda: left.pop(0),
    )  # fmt: skip
    watched = Watched(cast(Job, job))
    for _ in readings[1:]:
        watched.look()
    return watched.look()


def reading(at_s: float, *ranks: RankReading, **others: Any) -> Reading:
    return replace(Reading(at_s, at_s, 0, 0.0, "", "", tuple(ranks)), **others)


def counted(operations: int, nbytes: int, cpu_s: float = 0.0, **others: Any) -> RankReading:
    counters = {"operations": operations, "bytes_moved": nbytes}
    counters |= {"bytes_on_bus": nbytes * 3 // 2, "bytes_on_wire": nbytes // 2}
    return replace(RANK, counters=counters, process=Process("S", cpu_s, 0.0), **others)
