"""What ringrun and its agents say to each other, over an agent's standard input and output.

The agent begins with GREETING, since a login shell may have printed before. Then each side sends messages: kind (1
byte), length (4 bytes, little-endian), content. Content is JSON but for output, input and calls, which are bytes.
"""

from __future__ import annotations

import enum
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

from ringreduce.errors import MismatchError

PROTOCOL = 3
"""The number of these messages; it changes with them."""
GREETING = b"\0ringreduce agent %d\n" % PROTOCOL
ANY_GREETING = re.compile(rb"\0ringreduce agent (\d{1,9})\n")
"""That of an agent of any version: it keeps this form."""
HEADER = struct.Struct("<BI")
OUTPUT = struct.Struct("<IB")
NBYTES_MOST = 16 << 20
RESULT = 3
"""The stream by which a rank of ringreduce.run() answers, beside 1 (stdout) and 2 (stderr)."""
OUTPUT_NBYTES = 1 << 20
"""So much of one stream of a host may be under way to where ringrun writes it."""


class Kind(enum.IntEnum):
    """What a message is."""

    # From the agent; news.py has their fields.
    READY = 1
    """What the host is."""
    LISTENING = 2
    """Answers LISTEN."""
    TRIED = 3
    """Answers TRY."""
    STARTED = 4
    """A rank runs."""
    CANNOT_RUN = 5
    """The program cannot be run."""
    OUTPUT = 6
    """Rank, stream (1, 2 or RESULT) and what it has written."""
    OUTPUT_END = 7
    """Rank and stream: nothing more will come."""
    CAUSE = 8
    """An exception ends a rank."""
    EXIT = 9
    """A rank has ended."""
    INPUT_TAKEN = 10
    """Rank 0 has taken the last INPUT."""
    INPUT_CLOSED = 11
    """Rank 0 takes no more."""
    DONE = 12
    """Answers FINISH, as the last message."""

    # From ringrun; agent.py has their fields.
    LISTEN = 32
    """Be found at some addresses by so many other hosts: {key, hosts, ports, others}."""
    TRY = 33
    """Look which addresses lead to that host: {key, addresses}."""
    START = 34
    """Start ranks."""
    SIGNAL = 35
    """For all ranks: {signal}."""
    INPUT = 36
    """Rank 0's standard input; none is its end."""
    TAKEN = 37
    """So much output has been passed on: {stream, nbytes}. Where OUTPUT_NBYTES are not, the agent stops to read it."""
    CLOSE = 38
    """Nobody reads this stream of the ranks any more: {stream}."""
    FINISH = 39
    """All ranks of the job have ended: {kill, wait}. kill: what they have left running as well; wait: for its last
    words. It may come again, without wait."""
    CALL = 40
    """A piece of the call that the ranks are to make, before START."""


def packed(kind: Kind, content: Any = None) -> bytes:
    """A message. content: bytes, or what JSON can carry."""
    body = bytes(content) if isinstance(content, (bytes, bytearray, memoryview)) else json.dumps(content).encode()
    return HEADER.pack(kind, len(body)) + body


class Unpacker:
    """The messages in a stream of bytes.

    >>> unpacker = Unpacker()
    >>> list(unpacker.feed(packed(Kind.SIGNAL, {"signal": 15})[:7]))
    []
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """What is whole now. Raises MismatchError where it is no message."""
        self._held += data
        while len(self._held) >= HEADER.size:
            number, nbytes = HEADER.unpack_from(self._held)
            if nbytes > NBYTES_MOST or number not in set(Kind):
                raise MismatchError(f"message {number} of {nbytes} bytes is none of ringreduce's")
            end = HEADER.size + nbytes
            if len(self._held) < end:
                return
            body = bytes(self._held[HEADER.size : end])
            del self._held[:end]
            yield Kind(number), body
