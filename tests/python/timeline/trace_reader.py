"""Reads what ringreduce.timeline writes for viewers: as a viewer does, apart from the code that wrote it."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Fields = dict[int, list[Any]]
"""Of a protocol buffers message: the values of each field number; bytes, int, or float64's 8 bytes."""


def decoded(data: bytes) -> Fields:
    """One message. Raises ValueError where it is none."""
    found: Fields = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            found[key >> 3].append(value)
            continue
        length = 8
        if kind == 2:
            length, at = _varint(data, at)
        elif kind != 1:
            raise ValueError(f"wire type {kind}")
        if at + length > len(data):
            raise ValueError("cut off")
        found[key >> 3].append(data[at : at + length])
        at += length
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than 10 bytes")


@dataclass(frozen=True)
class Slice:
    """A slice, by what a viewer shows. Times in ns."""

    process: str
    track: str
    name: str
    begin: int
    end: int
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trace:
    """What a viewer shows of a Perfetto trace.

    Attributes:
        counters: (at ns, value) of each counter.
        flows: by flow id: the slice it leaves and the one it enters.
    """

    slices: list[Slice] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    flows: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))
    realtime_of_zero: int = 0


def perfetto_trace(path: Path) -> Trace:
    """Reads a .pftrace; slices must nest on each track. Field numbers are those of Perfetto's own definitions."""
    packets = [decoded(packet) for packet in decoded(path.read_bytes())[1]]
    names, argument_names, texts = _interned(packets[0])
    assert packets[0][13] == [1]  # what was interned before is void
    tracks = {track[1][0]: track for packet in packets for track in map(decoded, packet[60])}
    trace = Trace()
    for packet in packets:
        for clock in packet[6]:
            shown = {pair[1][0]: pair[2][0] for pair in map(decoded, decoded(clock)[1])}
            trace.realtime_of_zero = shown[1] - shown[6]
    events = [(packet[8][0], decoded(packet[11][0])) for packet in packets if packet[11]]
    assert all(packet[13] == [2] for packet in packets if packet[11])  # each needs the interned texts
    assert all(packet[10] == packets[0][10] for packet in packets)
    open_slices: dict[int, list[tuple[int, Fields]]] = defaultdict(list)
    for at, event in sorted(events, key=lambda pair: pair[0]):
        uuid, kind = event[11][0], event[9][0]
        if kind == 4:
            (value,) = struct.unpack("<d", event[44][0])
            trace.counters[tracks[uuid][2][0].decode()].append((at, value))
        elif kind == 1:
            open_slices[uuid].append((at, event))
        else:
            begin, begun = open_slices[uuid].pop()
            args = _args(begun, argument_names, texts)
            track = tracks[uuid]
            process = decoded(tracks[track[5][0]][3][0])
            text = names[begun[10][0]]
            shown_slice = Slice(process[6][0].decode(), track[2][0].decode(), text, begin, at, args)
            trace.slices.append(shown_slice)
            for flow in _fixed(begun[47]):
                trace.flows[flow].insert(0, shown_slice)
            for flow in _fixed(begun[48]):
                trace.flows[flow].append(shown_slice)
    assert not any(open_slices.values())
    return trace


def _interned(packet: Fields) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    data = decoded(packet[12][0])
    tables = [{entry[1][0]: entry[2][0].decode() for entry in map(decoded, data[number])} for number in (2, 3, 29)]
    return tables[0], tables[1], tables[2]


def _args(event: Fields, names: dict[int, str], texts: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for annotation in map(decoded, event[4]):
        found[names[annotation[1][0]]] = annotation[3][0] if annotation[3] else texts[annotation[17][0]]
    return found


def _fixed(values: Sequence[bytes]) -> Iterator[int]:
    return (int(struct.unpack("<Q", value)[0]) for value in values)
