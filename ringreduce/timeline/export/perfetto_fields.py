"""The field and enum numbers of Perfetto's trace format that perfetto.py writes, by message."""

from __future__ import annotations

TRACE_PACKET = 1


class Packet:
    """TracePacket."""

    CLOCK_SNAPSHOT = 6
    TIMESTAMP = 8
    SEQUENCE_ID = 10
    TRACK_EVENT = 11
    INTERNED_DATA = 12
    SEQUENCE_FLAGS = 13
    TRACK_DESCRIPTOR = 60


class Event:
    """TrackEvent."""

    ANNOTATION = 4
    TYPE = 9
    NAME_IID = 10
    TRACK_UUID = 11
    DOUBLE_VALUE = 44
    FLOW = 47
    FLOW_END = 48


class Annotation:
    """DebugAnnotation."""

    NAME_IID = 1
    UINT = 3
    TEXT_IID = 17


class Interned:
    """InternedData; each entry has an iid (1) and a text (2)."""

    EVENT_NAMES = 2
    ANNOTATION_NAMES = 3
    TEXTS = 29
    IID = 1
    TEXT = 2


class Descriptor:
    """TrackDescriptor, and the messages within."""

    UUID = 1
    NAME = 2
    PROCESS = 3
    PARENT_UUID = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    ORDER = 12
    PROCESS_ORDERING = 19
    PROCESS_PID = 1
    PROCESS_NAME = 6
    COUNTER_UNIT = 6


class Snapshot:
    """ClockSnapshot, and the clocks within."""

    CLOCK = 1
    PRIMARY = 2
    CLOCK_ID = 1
    CLOCK_TIME = 2


SLICE_BEGIN, SLICE_END, COUNTER_VALUE = 1, 2, 4
STATE_CLEARED, STATE_NEEDED = 1, 2
REALTIME, BOOTTIME = 1, 6
EXPLICIT_CHILDREN, EXPLICIT_PROCESSES = 3, 1
