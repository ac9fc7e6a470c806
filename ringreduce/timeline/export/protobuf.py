"""Protocol buffers by hand: single fields, and many messages of one shape at once.

Messages of one shape have equal lengths: each number takes as many bytes as the largest of its column. A varint may be
longer than it must be (its upper 7-bit groups are then 0); every decoder reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """A number from 0 to 2^64 - 1."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number(field: int, value: int) -> bytes:
    """An integer field, not negative."""
    return _tag(field, _VARINT) + varint(value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes: a message within a message, too."""
    return _tag(field, _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A string field."""
    return data(field, value.encode())


@dataclass(frozen=True)
class Column:
    """A part of messages of one shape that differs from one to the next: `width` bytes that hold the values.

    values: uint64; kind: "varint" or "fixed64".
    """

    values: np.ndarray
    width: int
    kind: str


Piece = bytes | Column


def numbers(field: int, values: np.ndarray) -> list[Piece]:
    """An integer field of each message, none negative."""
    unsigned = values.astype(np.uint64)
    width = max(1, -(-int(unsigned.max(initial=0)).bit_length() // 7))
    return [_tag(field, _VARINT), Column(unsigned, width, "varint")]


def fixed(field: int, values: np.ndarray) -> list[Piece]:
    """A fixed64 field of each message; of float64 values, a double field."""
    return [_tag(field, _FIXED64), Column(np.ascontiguousarray(values).view(np.uint64), 8, "fixed64")]


def message(field: int, pieces: Sequence[Piece]) -> list[Piece]:
    """A message field that consists of pieces, in each message."""
    return [_tag(field, _BYTES) + varint(_width(pieces)), *pieces]


def messages(pieces: Sequence[Piece], count: int) -> np.ndarray:
    """`count` messages: uint8, one in each row."""
    plain = b"".join(piece if isinstance(piece, bytes) else bytes(piece.width) for piece in pieces)
    found = np.empty((count, len(plain)), np.uint8)
    found[:] = np.frombuffer(plain, np.uint8)
    at = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            at += len(piece)
            continue
        step = 7 if piece.kind == "varint" else 8
        for index in range(piece.width):
            more = 0x80 if piece.kind == "varint" and index + 1 < piece.width else 0
            low = (piece.values >> np.uint64(step * index)).astype(np.uint8)
            found[:, at + index] = low & 0x7F | more if step == 7 else low
        at += piece.width
    return found


def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def _width(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) if isinstance(piece, bytes) else piece.width for piece in pieces)
