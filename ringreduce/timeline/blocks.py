"""The blocks that a record file consists of: a header of 32 bytes, and a body that has the length and sum it names."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = 0x42545252  # the bytes "RRTB"
HEADER = struct.Struct("<IIQQQ")
"""magic, kind, bytes of the body, sum of its 8-byte words modulo 2^64, records dropped so far."""
PROCESS, GROUP, NAMES, RECORDS, END = 1, 2, 3, 4, 5

TEXT_MOST = 1000
"""Characters of a text that are kept: traces make room for the longest. A rank writes at most 244 bytes of a name."""

_END_BEGINS = struct.pack("<II", MAGIC, END)
_END_NBYTES_MOST = 512  # of the last block, whose body is a short reason


class BadBlockError(ValueError):
    """A block that cannot be believed; the text says why. It never leaves this package."""


@dataclass(frozen=True)
class Block:
    """A whole block. where: for messages."""

    where: str
    kind: int
    body: memoryview
    dropped: int

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            said = json.loads(bytes(self.body).decode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise BadBlockError("no JSON") from error
        if not isinstance(said, dict):
            raise BadBlockError("JSON that is no object")
        return said


def blocks(data: bytes) -> Iterator[Block]:
    """The blocks up to the first one that is cut off or damaged, for which it raises BadBlockError."""
    view, at = memoryview(data), 0
    while at < len(data):
        where = f"the block at byte {at} of {len(data)}"
        begin = at + HEADER.size
        if len(data) < begin:
            raise BadBlockError(f"{where} is cut off")
        magic, kind, nbytes, total, dropped = HEADER.unpack_from(data, at)
        if magic != MAGIC:
            raise BadBlockError(f"{where} does not begin as a block does")
        if nbytes % 8:
            raise BadBlockError(f"{where} has a length that is no multiple of 8")
        if nbytes > len(data) - begin:
            raise BadBlockError(f"{where} is cut off")
        body = view[begin : begin + nbytes]
        if int(np.frombuffer(body, "<u8").sum(dtype=np.uint64)) != total:
            raise BadBlockError(f"{where} has a wrong sum")
        yield Block(where, kind, body, dropped)
        at = begin + nbytes


def has_end(path: Path) -> bool:
    """Whether a file's last block says that the timeline was ended: nothing more will be written."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _END_NBYTES_MOST))
        return _END_BEGINS in file.read()


def integer(said: dict[str, Any], key: str, low: int, end: int) -> int:
    """An integer from low to end - 1. True is none."""
    value = said.get(key)
    if type(value) is not int or not low <= value < end:
        raise BadBlockError(f"{key} is {value!r:.40}, not an integer from {low} to {end - 1}")
    return value


def array(said: dict[str, Any], key: str) -> list[Any]:
    """A list of anything."""
    value = said.get(key)
    if not isinstance(value, list):
        raise BadBlockError(f"{key} is {value!r:.40}, not a list")
    return value


def text(value: object, key: str) -> str:
    """A string that can be written as UTF-8: JSON allows half a surrogate pair, which cannot. Of TEXT_MOST at most."""
    if not isinstance(value, str):
        raise BadBlockError(f"{key} is {value!r:.40}, not a text")
    shown = value if len(value) <= TEXT_MOST else value[: TEXT_MOST - 3] + "..."
    return shown.encode(errors="replace").decode()
