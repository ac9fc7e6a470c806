"""Small collectives of the package itself: an all-gather of JSON, an all-reduce of integers, a new shared memory file.

For the memory file one rank makes an FdExchange (an address and a secret) and sends it to the others by
allgather_json(); then the descriptor travels over a socket at that address. Used by process sets (a control segment
each) and by symmetric memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ringreduce import _core
from ringreduce.job import rendezvous

if TYPE_CHECKING:
    from ringreduce._core import Group


def allgather_json(group: Group, name: str, mine: Any) -> list[Any]:
    """Every member's object, in group order. Collective over the group; objects are what JSON can carry."""
    source = np.frombuffer(json.dumps(mine).encode(), np.uint8)
    work = group.allgather_async(source, f"ringreduce.{name}")
    work.wait()
    text = bytes(work.output or b"")
    objects, start = [], 0
    for count in work.counts:
        objects.append(json.loads(text[start : start + count]))
        start += count
    return objects


def allreduce_integers(group: Group, name: str, mine: Sequence[int], op: int) -> list[int]:
    """The sum, maximum or minimum of each integer (64 bits) over the members that have not joined. It works after other
    members have joined, and allgather_json() does not. Collective over those that have not joined.
    """
    values = np.array(mine, np.int64)
    group.allreduce_async([values], [values], op, 1.0, 1.0, f"ringreduce.{name}", None).wait()
    return [int(value) for value in values]


def has_nobody_joined(group: Group, name: str) -> bool:
    """Whether no member has joined. Collective over those that have not."""
    from ringreduce.collectives.ops import Sum  # which imports process sets, and they import this file

    return allreduce_integers(group, f"{name}.ranks", [1], Sum) == [group.size]


@dataclass(frozen=True)
class FdExchange:
    """Where the members of a group receive the descriptor of a memory file."""

    address: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> FdExchange:
        """A new address and secret, for the leader to send to the others."""
        return cls(*rendezvous.new_address())

    @classmethod
    def from_json(cls, pair: list[str]) -> FdExchange:
        """The exchange from what allgather_json() returns."""
        address, secret = pair
        return cls(bytes.fromhex(address), bytes.fromhex(secret))

    def to_json(self) -> list[str]:
        """The exchange as allgather_json() takes it."""
        return [self.address.hex(), self.secret.hex()]

    @contextmanager
    def memory_file(
        self,
        label: str,
        nbytes: int,
        members: Sequence[int],
        rank: int,
        timeout_s: float,
        check: Callable[[], None],
    ) -> Iterator[int]:
        """A descriptor of one memory file of nbytes zero bytes, the same file on all members; closed on leaving.

        Args:
            members: ranks that call this, in one order on all of them; the first one creates the file.
            rank: this process among them.
            check: raises when a member will not call this any more.
        """
        meeting = (self.address, self.secret, timeout_s, check)
        fd = rendezvous.share_fd(lambda: _core.memfd(label, nbytes), members, rank, *meeting)
        try:
            yield fd
        finally:
            os.close(fd)
