"""A job as a Perfetto trace (protocol buffers), for ui.perfetto.dev: what chrome.py writes, in less time and space.

One sequence of packets. Texts stand once, in its first packet. The packets of a layer have one shape and are made at
once, see protobuf.py. A viewer sorts a trace when it opens it, so the packets' order in the file is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ringreduce.timeline.export import perfetto_fields as fields
from ringreduce.timeline.export.layout import Arrows, Counter, Layer, layout
from ringreduce.timeline.export.perfetto_fields import Annotation, Event, Packet
from ringreduce.timeline.export.perfetto_head import ANNOTATIONS, SEQUENCE_ID, Texts, counter_uuid, head, track_uuid
from ringreduce.timeline.export.protobuf import Piece, fixed, message, messages, number, numbers
from ringreduce.timeline.job import Job
from ringreduce.timeline.whole_file import whole_file

BATCH = 100_000  # slices that are made at one time


def write(job: Job, path: Path) -> None:
    """Writes the file. Times are in ns since the job's time 0; the viewer also gets their wall clock.

    Raises InvalidArgumentError where it cannot be written.
    """
    shown = layout(job)
    texts = Texts(job, shown)
    flows = _Flows(shown.arrows, len(job.rows))
    with whole_file(path) as file:
        file.write(b"".join(head(job, shown, texts)))
        for layer in (shown.calls, shown.negotiation, shown.operations, shown.messages):
            names, uuids = texts.names(layer), np.asarray(track_uuid(layer.track, job))
            annotate = layer is shown.operations
            for begin in range(0, len(layer.track), BATCH):
                part = np.arange(begin, min(begin + BATCH, len(layer.track)))
                for chosen, arrows in _with_arrows(layer, part, flows, annotate):
                    said = _annotations(job, layer.row[chosen], texts) if annotate else []
                    file.write(_slices(layer, chosen, uuids[chosen], names[chosen], [*said, *arrows]))
        for index, counter in enumerate(shown.counters):
            file.write(_counter(counter, counter_uuid(index, job, shown)))


class _Flows:
    """The arrows by row: arrow i has the flow id i + 1. Those from one row follow one another."""

    def __init__(self, arrows: Arrows, rows: int) -> None:
        ids = np.arange(1, len(arrows.source_row) + 1)
        self.incoming = np.zeros(rows, np.int64)
        self.incoming[arrows.target_row] = ids
        self.outgoing = np.bincount(arrows.source_row, minlength=rows)
        self.first = np.zeros(rows, np.int64)
        self.first[arrows.source_row[::-1]] = ids[::-1]


def _with_arrows(layer: Layer, part: np.ndarray, flows: _Flows, ends: bool) -> Iterator[tuple[np.ndarray, list[Piece]]]:
    """The slices of a part by the number of their arrows, which have to have one shape, and the arrows' pieces."""
    rows = layer.row[part]
    if len(rows) and rows[0] < 0:
        yield part, []
        return
    counts = (flows.incoming[rows] > 0).astype(np.int64) if ends else flows.outgoing[rows]
    for count in np.unique(counts).tolist():
        chosen = counts == count
        arrows: list[Piece] = []
        for index in range(count):
            ids = flows.incoming[rows[chosen]] if ends else flows.first[rows[chosen]] + index
            arrows += fixed(Event.FLOW_END if ends else Event.FLOW, ids)
        yield part[chosen], arrows


def _slices(layer: Layer, part: np.ndarray, uuids: np.ndarray, names: np.ndarray, more: list[Piece]) -> bytes:
    """A packet for the begin and one for the end of each slice, side by side: a slice of 0 ns begins before it ends."""
    begin = [number(Event.TYPE, fields.SLICE_BEGIN), *numbers(Event.TRACK_UUID, uuids), *numbers(Event.NAME_IID, names)]
    end = [number(Event.TYPE, fields.SLICE_END), *numbers(Event.TRACK_UUID, uuids)]
    pieces = _packet(layer.begin_ns[part], [*begin, *more]) + _packet(layer.end_ns[part], end)
    return messages(pieces, len(part)).tobytes()


def _packet(at_ns: np.ndarray, event: list[Piece]) -> list[Piece]:
    state = number(Packet.SEQUENCE_FLAGS, fields.STATE_NEEDED)
    head = [*numbers(Packet.TIMESTAMP, at_ns), SEQUENCE_ID, state]
    return message(fields.TRACE_PACKET, [*head, *message(Packet.TRACK_EVENT, event)])


def _annotations(job: Job, rows: np.ndarray, texts: Texts) -> list[Piece]:
    """bytes, algorithm and the like of each row, in the order of ANNOTATIONS."""
    mine = job.rows[rows]
    operations = job.operations[mine["operation"]]
    op = np.where(texts.reduces[operations["kind"]], texts.op[operations["op"]], texts.no_op)
    values = (mine["nbytes"], operations["number"], operations["last_rank"])
    iids = (
        texts.algorithm[mine["algorithm"]],
        texts.flags[mine["flags"]],
        texts.dtype[operations["dtype"]],
        op,
        texts.group[operations["group"]],
    )
    found: list[Piece] = []
    columns = [(Annotation.UINT, column) for column in values] + [(Annotation.TEXT_IID, column) for column in iids]
    for index, (field, column) in enumerate(columns[: len(ANNOTATIONS)]):
        found += message(Event.ANNOTATION, [number(Annotation.NAME_IID, 1 + index), *numbers(field, column)])
    return found


def _counter(counter: Counter, uuid: int) -> bytes:
    event = [number(Event.TYPE, fields.COUNTER_VALUE), number(Event.TRACK_UUID, uuid)]
    pieces = _packet(counter.at_ns, [*event, *fixed(Event.DOUBLE_VALUE, counter.value)])
    return messages(pieces, len(counter.at_ns)).tobytes()
