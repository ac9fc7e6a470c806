"""A job in the form of Horovod's timeline: a JSON array of trace events with a process for each tensor name.

Each rank's call is a tick within NEGOTIATE_...; the execution is that of the operation's lowest rank.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ringreduce.timeline.export.labels import group_label
from ringreduce.timeline.export.lanes import lanes
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import NO_ALGORITHM
from ringreduce.timeline.whole_file import whole_file

BATCH = 10_000  # operations that are text at one time
_TICK = '{"ph":"X","name":"%d","ts":%d.%03d,"pid":%d,"dur":0}'
_CYCLE = '{"ph":"i","name":"CYCLE_START","ts":%d.%03d,"s":"g"}'


def write(job: Job, path: Path, mark_cycles: bool) -> None:
    """Writes the file; times are in us since the job's time 0.

    mark_cycles: adds a CYCLE_START wherever the lowest rank started a bucket. Raises InvalidArgumentError where the
    file cannot be written.
    """
    shown = _Shown(job)
    with whole_file(path) as file:
        epoch = {"start_time_since_epoch_in_micros": job.base_realtime_ns // 1000}
        first = [{"name": "process_name", "ph": "M", "pid": 0, "args": epoch}, *_named(0, 0)]
        for pid, name in enumerate(shown.processes, 1):
            first += [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}, *_named(pid, pid)]
        file.write(("[\n" + ",\n".join(map(json.dumps, first))).encode())
        if mark_cycles:
            for line in _cycles(job):
                file.write((",\n" + line).encode())
        for begin in range(0, len(job.operations), BATCH):
            for line in shown.lines(slice(begin, begin + BATCH)):
                file.write((",\n" + line).encode())
        file.write(b"\n]\n")


def _named(pid: int, order: int) -> list[dict[str, object]]:
    return [{"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": order}}]


class _Shown:
    """What is shown of each operation: its process, and its times, which do not overlap within a process.

    A rank may call an operation again before the lowest rank has ended the former one of that name. It is then shown
    from that end on.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        operations, lowest = job.operations, job.rows[job.operations["first_row"]]
        self.pid, self.processes = _processes(job)
        self.ran = lowest["started_ns"] != 0
        order = np.argsort(self.pid, kind="stable")
        until = np.empty(len(order), np.int64)
        until[order] = _ended_before(self.pid[order], lowest["ended_ns"][order])
        self.called = np.maximum(operations["first_called_ns"], until)
        self.ended = np.maximum(lowest["ended_ns"], self.called)
        started = np.where(self.ran, lowest["started_ns"], lowest["ended_ns"])
        self.started = np.clip(started, self.called, self.ended)
        self.algorithm = lowest["algorithm"]

    def lines(self, part: slice) -> Iterator[str]:
        """The events of a part of the operations, one text for each operation."""
        job = self._job
        operations = job.operations[part]
        ticks = self._ticks(part)
        kinds = [json.dumps(kind.upper())[1:-1] for kind in job.kinds]
        activities = [json.dumps(f"RINGREDUCE_{name.upper()}") for name in job.algorithms]
        dtypes = [json.dumps(dtype) for dtype in job.dtypes]
        at = 0
        for index, kind, dtype, nbytes, rows in zip(
            range(part.start, part.start + len(operations)),
            *(operations[column].tolist() for column in ("kind", "dtype", "nbytes", "rows")),
            strict=True,
        ):
            pid = f'"pid":{self.pid[index]}'
            called, started, ended = (_us(int(ns[index])) for ns in (self.called, self.started, self.ended))
            yield f'{{"ph":"B","name":"NEGOTIATE_{kinds[kind]}","ts":{called},{pid}}}'
            yield ",\n".join(ticks[at : at + rows])
            yield f'{{"ph":"E","ts":{started},{pid}}}'
            at += rows
            if not self.ran[index]:
                continue
            yield f'{{"ph":"B","name":"{kinds[kind]}","ts":{started},{pid}}}'
            if self.algorithm[index] != NO_ALGORITHM:
                yield f'{{"ph":"B","name":{activities[self.algorithm[index]]},"ts":{started},{pid}}}'
                yield f'{{"ph":"E","ts":{ended},{pid}}}'
            yield f'{{"ph":"E","ts":{ended},{pid},"args":{{"dtype":{dtypes[dtype]},"nbytes":{nbytes}}}}}'

    def _ticks(self, part: slice) -> list[str]:
        """A tick for each row, within the negotiation that it belongs to."""
        operations = self._job.operations[part]
        first = int(operations["first_row"][0])
        rows = self._job.rows[first : first + int(operations["rows"].sum())]
        index = rows["operation"]
        at = np.clip(rows["called_ns"], self.called[index], self.started[index])
        us = at // 1000
        columns = (rows["rank"], us, at - us * 1000, self.pid[index])
        return list(map(_TICK.__mod__, zip(*(column.tolist() for column in columns), strict=True)))


def _processes(job: Job) -> tuple[np.ndarray, list[str]]:
    """The pid of each operation, from 1, and the name of each process.

    Unnamed operations of one kind share a process, "allreduce.noname.0", as far as they do not overlap.
    """
    operations = job.operations
    kind_and_group = operations["kind"].astype(np.int64) * len(job.groups) + operations["group"]
    unnamed = np.flatnonzero(operations["name"] == 0)
    lane = np.zeros(len(operations), np.int64)
    chosen = operations[unnamed]
    lane[unnamed] = lanes(kind_and_group[unnamed], chosen["first_called_ns"], chosen["ended_ns"])
    # One number for each process: below the names are those of lanes.
    which = np.where(operations["name"] == 0, -lane, operations["name"])
    pairs = np.stack([kind_and_group, which], axis=1)
    _, first, index = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")  # by their first operation
    place = np.empty_like(order)
    place[order] = np.arange(1, len(order) + 1)
    return place[index.reshape(-1)], [_process_name(job, job.operations[at], int(lane[at])) for at in first[order]]


def _process_name(job: Job, operation: np.void, lane: int) -> str:
    group = job.groups[operation["group"]]
    suffix = "" if len(group.ranks) == job.files[0].size else f" ({group_label(group, job.files[0].size)})"
    name = job.names[operation["name"]] if operation["name"] else f"noname.{lane}"
    return f"{job.kinds[operation['kind']]}.{name}{suffix}"


def _ended_before(pid: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """For each operation the latest end of those before it in its process; pid is sorted. Else the least time."""
    before = np.full(len(pid), np.iinfo(np.int64).min)
    edges = np.flatnonzero(np.diff(pid, prepend=0, append=len(pid) + 2))
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        before[begin + 1 : end] = np.maximum.accumulate(ended[begin : end - 1])
    return before


def _cycles(job: Job) -> list[str]:
    """An instant at each start of a bucket: operations that start at one time on one rank share it."""
    mine = job.rows[job.rows["rank"] == job.files[0].rank]
    starts = np.unique(mine["started_ns"][mine["started_ns"] != 0])
    us = starts // 1000
    return list(map(_CYCLE.__mod__, zip(us.tolist(), (starts - us * 1000).tolist(), strict=True)))


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
