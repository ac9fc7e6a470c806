"""What a trace viewer shows of a job: slices on tracks, arrows, counters. The same for each format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ringreduce.timeline.export.labels import NO_KIND, group_labels, labelled
from ringreduce.timeline.export.lanes import lanes
from ringreduce.timeline.job import Job
from ringreduce.timeline.rates import bus_bytes

ARROW_NS = 50_000
"""A rank that waited longer than this for the last one gets an arrow from that one's call."""


@dataclass(frozen=True)
class Track:
    """A line of slices. Several lanes have one name where slices overlap. order: among the rank's, by name."""

    rank: int
    name: str
    lane: int
    order: int


@dataclass(frozen=True)
class Layer:
    """Slices of one kind, and which tracks they are on. All arrays have one entry for each slice.

    Attributes:
        verb: what a slice's text begins with.
        track: indices of Layout.tracks.
        label: indices of Layout.labels.
        row: indices of Job.rows; -1: none.
    """

    verb: str
    track: np.ndarray
    label: np.ndarray
    begin_ns: np.ndarray
    end_ns: np.ndarray
    row: np.ndarray


@dataclass(frozen=True)
class Arrows:
    """From the call of the last rank (source_row) to the start at a rank that waited for it (target_row)."""

    source_row: np.ndarray
    target_row: np.ndarray


@dataclass(frozen=True)
class Counter:
    """A value over time."""

    name: str
    unit: str
    at_ns: np.ndarray
    value: np.ndarray


@dataclass(frozen=True)
class Layout:
    """All that is shown. negotiation: from each call to the start; operations: from the start to the end."""

    tracks: list[Track]
    labels: list[str]
    calls: Layer
    negotiation: Layer
    operations: Layer
    messages: Layer
    arrows: Arrows
    counters: list[Counter]


def layout(job: Job) -> Layout:
    """Lays a job out."""
    rows, operations, waits, messages = job.rows, job.operations, job.waits, job.messages
    of_message = (waits["operation"] < 0) & np.isin(waits["name"], messages["name"])
    kinds = np.concatenate(
        [operations["kind"], np.where(of_message, NO_KIND, waits["kind"]), np.full(len(messages), NO_KIND)]
    )
    names = np.concatenate([operations["name"], waits["name"], messages["name"]])
    label, labels = labelled(job, kinds, names)
    of_row = label[: len(operations)][rows["operation"]]
    of_wait, of_sent = np.split(label[len(operations) :], [len(waits)])
    ran = np.flatnonzero(rows["started_ns"])
    negotiated = np.where(rows["started_ns"] != 0, rows["started_ns"], rows["ended_ns"])
    tracks = _Tracks()
    every = np.arange(len(rows))
    none = np.full(max(len(waits), len(messages)), -1)
    return Layout(
        tracks=tracks.tracks,
        labels=labels,
        calls=tracks.layer("wait ", "calls", waits, of_wait, waits["begin_ns"], waits["end_ns"], none),
        negotiation=tracks.layer(
            "negotiate ", "negotiation", rows, of_row, rows["called_ns"], negotiated, every, threads=False
        ),
        operations=tracks.layer(
            "", "operations", rows[ran], of_row[ran], rows["started_ns"][ran], rows["ended_ns"][ran], ran, threads=False
        ),
        messages=tracks.layer(
            "", "messages", messages, of_sent, messages["called_ns"], messages["ended_ns"], none, threads=False
        ),
        arrows=_arrows(job),
        counters=_counters(job),
    )


class _Tracks:
    """The tracks so far."""

    def __init__(self) -> None:
        self.tracks: list[Track] = []
        self._layers = 0

    def layer(
        self,
        verb: str,
        name: str,
        records: np.ndarray,
        label: np.ndarray,
        begin_ns: np.ndarray,
        end_ns: np.ndarray,
        row: np.ndarray,
        threads: bool = True,
    ) -> Layer:
        """Puts slices on tracks of their rank, and of their thread where `threads` says so."""
        group = records["rank"].astype(np.int64) << 16
        if threads:
            group |= records["thread"]
        lane = lanes(np.unique(group, return_inverse=True)[1] if threads else records["rank"], begin_ns, end_ns)
        keys = (group << 31) | lane
        used, index = np.unique(keys, return_inverse=True)
        first = len(self.tracks)
        for key in used.tolist():
            rank, thread, at = key >> 47, key >> 31 & 0xFFFF, key & 0x7FFFFFFF
            text = f"{name} of thread {thread}" if thread else name
            self.tracks.append(Track(rank, text, at, self._layers << 16 | thread))
        self._layers += 1
        return Layer(verb, first + index, label, begin_ns, end_ns, row[: len(begin_ns)])


def _arrows(job: Job) -> Arrows:
    rows, operations = job.rows, job.operations
    last = operations["last_rank"][rows["operation"]] == rows["rank"]
    source = np.zeros(len(operations), np.int64)
    source[rows["operation"][last]] = np.flatnonzero(last)
    waited = operations["complete_ns"][rows["operation"]] - rows["called_ns"]
    target = np.flatnonzero((waited > ARROW_NS) & (rows["started_ns"] != 0))
    return Arrows(source[rows["operation"][target]], target)


def _counters(job: Job) -> list[Counter]:
    """Two for each group of several ranks: how late its last rank was, and the bus bandwidth of what has bytes."""
    found = []
    operations = job.operations
    whole = (operations["rows"] == operations["expected"]) & (operations["expected"] > 1)
    moved = bus_bytes(job)
    for index, group in enumerate(group_labels(job)):
        chosen = np.flatnonzero(whole & (operations["group"] == index))
        if not len(chosen):
            continue
        complete = operations["complete_ns"][chosen]
        late = (complete - operations["first_called_ns"][chosen]) / 1e3
        found.append(Counter(f"late, {group} (us)", "us", complete, late))
        at_ns, rate = _bandwidth(job, chosen[moved[chosen] > 0], moved)
        if len(at_ns):
            found.append(Counter(f"bus bandwidth, {group} (GB/s)", "GB/s", at_ns, rate))
    return found


def _bandwidth(job: Job, chosen: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The end of each bucket of the chosen operations, and its bytes over the time since its last call, in GB/s.

    Operations that start at one time on their lowest rank share a bucket: each alone would seem as slow as all.
    """
    operations = job.operations[chosen]
    started = job.rows["started_ns"][operations["first_row"]]
    order = np.argsort(started, kind="stable")
    order = order[started[order] != 0]
    if not len(order):
        return order, order
    first = np.flatnonzero(np.diff(started[order], prepend=-1))
    ended = np.maximum.reduceat(operations["ended_ns"][order], first)
    took = ended - np.maximum.reduceat(operations["complete_ns"][order], first)
    has = took > 0
    return ended[has], np.add.reduceat(moved[chosen][order], first)[has] / took[has]
