"""What stands at the beginning of a Perfetto trace: clocks, interned texts, processes and tracks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ringreduce.timeline.export import perfetto_fields as fields
from ringreduce.timeline.export.labels import NO_TEXT, REDUCTIONS, flag_labels, group_labels, process_label
from ringreduce.timeline.export.layout import Layer, Layout
from ringreduce.timeline.export.perfetto_fields import Descriptor, Interned, Packet, Snapshot
from ringreduce.timeline.export.protobuf import data, number, text
from ringreduce.timeline.job import Job

SEQUENCE_ID = number(Packet.SEQUENCE_ID, 1)
ANNOTATIONS = ("bytes", "number", "last rank", "algorithm", "flags", "dtype", "op", "group")


class Texts:
    """The iids of a trace's texts. An event's name has that of its layer and label."""

    def __init__(self, job: Job, shown: Layout) -> None:
        self._labels = shown.labels
        self._layers = [shown.calls, shown.negotiation, shown.operations, shown.messages]
        self._texts: dict[str, int] = {}
        used, flags = np.zeros(256, bool), np.zeros(256, bool)
        used[job.rows["algorithm"]], flags[job.rows["flags"]] = True, True
        self.algorithm = self._iids(job.algorithms, used)
        self.flags = self._iids(flag_labels(), flags)
        self.dtype = self._iids(job.dtypes, np.isin(np.arange(256), job.operations["dtype"]))
        self.op = self._iids(job.ops, np.isin(np.arange(256), job.operations["op"]))
        self.no_op = self._iid(NO_TEXT)
        self.reduces = np.array([kind in REDUCTIONS for kind in job.kinds])
        labels = group_labels(job)
        self.group = self._iids(labels, np.ones(len(labels), bool))

    def names(self, layer: Layer) -> np.ndarray:
        """The iid of each slice's name."""
        index = next(at for at, other in enumerate(self._layers) if other is layer)
        return 1 + index * len(self._labels) + layer.label

    def data(self) -> bytes:
        """All texts with their iids."""
        parts = []
        for layer in self._layers:
            iids, first = np.unique(self.names(layer), return_index=True)
            for iid, label in zip(iids.tolist(), layer.label[first].tolist(), strict=True):
                parts.append(_entry(Interned.EVENT_NAMES, iid, layer.verb + self._labels[label]))
        parts += [_entry(Interned.ANNOTATION_NAMES, 1 + index, name) for index, name in enumerate(ANNOTATIONS)]
        parts += [_entry(Interned.TEXTS, iid, value) for value, iid in self._texts.items()]
        return b"".join(parts)

    def _iids(self, values: Iterable[str], used: np.ndarray) -> np.ndarray:
        found = [self._iid(value or NO_TEXT) if has else 0 for value, has in zip(values, used.tolist(), strict=True)]
        return np.array(found, np.int64)

    def _iid(self, value: str) -> int:
        return self._texts.setdefault(value, 1 + len(self._texts))


def _entry(field: int, iid: int, value: str) -> bytes:
    return data(field, number(Interned.IID, iid) + text(Interned.TEXT, value))


def track_uuid(index: int | np.ndarray, job: Job) -> int | np.ndarray:
    """Of a track of the layout; those before are of processes, 0 is the root."""
    return 1 + len(job.files) + index


def counter_uuid(index: int, job: Job, shown: Layout) -> int:
    """Of a counter of the layout."""
    return 1 + len(job.files) + len(shown.tracks) + index


def head(job: Job, shown: Layout, texts: Texts) -> Iterator[bytes]:
    """The packets before the events."""
    yield _packet(data(Packet.INTERNED_DATA, texts.data()), fields.STATE_CLEARED)
    yield _packet(data(Packet.CLOCK_SNAPSHOT, _clocks(job)))
    processes = number(Descriptor.UUID, 0) + number(Descriptor.PROCESS_ORDERING, fields.EXPLICIT_PROCESSES)
    yield _descriptor(processes)
    uuid_of = {}
    for index, (file, pid) in enumerate(zip(job.files, _pids(job), strict=True)):
        uuid_of[file.rank] = 1 + index
        process = number(Descriptor.PROCESS_PID, pid) + text(Descriptor.PROCESS_NAME, process_label(file))
        yield _descriptor(
            number(Descriptor.UUID, uuid_of[file.rank])
            + data(Descriptor.PROCESS, process)
            + number(Descriptor.CHILD_ORDERING, fields.EXPLICIT_CHILDREN)
            + number(Descriptor.ORDER, index)
        )
    for index, track in enumerate(shown.tracks):
        # The lanes of one name are one track to the viewer, which packs their slices.
        yield _descriptor(
            number(Descriptor.UUID, int(track_uuid(index, job)))
            + text(Descriptor.NAME, track.name)
            + number(Descriptor.PARENT_UUID, uuid_of[track.rank])
            + number(Descriptor.ORDER, track.order)
        )
    for index, counter in enumerate(shown.counters):
        yield _descriptor(
            number(Descriptor.UUID, counter_uuid(index, job, shown))
            + text(Descriptor.NAME, counter.name)
            + data(Descriptor.COUNTER, text(Descriptor.COUNTER_UNIT, counter.unit))
        )


def _packet(content: bytes, flags: int = 0) -> bytes:
    state = number(Packet.SEQUENCE_FLAGS, flags) if flags else b""
    return data(fields.TRACE_PACKET, SEQUENCE_ID + state + content)


def _descriptor(content: bytes) -> bytes:
    return _packet(data(Packet.TRACK_DESCRIPTOR, content))


def _clocks(job: Job) -> bytes:
    """The wall clock of 1 ns, in the clock that timestamps without one are of."""
    pairs = ((fields.BOOTTIME, 1), (fields.REALTIME, max(job.base_realtime_ns, 0) + 1))
    clocks = (number(Snapshot.CLOCK_ID, clock) + number(Snapshot.CLOCK_TIME, ns) for clock, ns in pairs)
    return b"".join(data(Snapshot.CLOCK, clock) for clock in clocks) + number(Snapshot.PRIMARY, fields.BOOTTIME)


def _pids(job: Job) -> list[int]:
    """The ranks' own, where no two are equal; the viewer takes 0 for a processor that does nothing."""
    own = [file.pid for file in job.files]
    if len(set(own)) == len(own) and all(0 < pid < 2**31 for pid in own):
        return own
    return [1 + file.rank for file in job.files]
