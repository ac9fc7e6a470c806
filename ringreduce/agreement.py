"""How the ranks of a group agree on small facts, and how they come to map one new memory file.

A handover is an address and a secret that one rank makes up; it travels inside an exchange, and then the memory file
travels over it. Used by process sets (a control segment each) and by symmetric memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringreduce import _core, rendezvous

if TYPE_CHECKING:
    from ringreduce._core import Group


def exchange(group: Group, name: str, mine: Any) -> list[Any]:
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


def combined(group: Group, name: str, mine: Sequence[int], op: int) -> list[int]:
    """The sum, maximum or minimum of each integer (64 bits) over the members that have not joined; so it goes on when
    others have, as exchange() does not. Collective over the others.
    """
    values = np.array(mine, np.int64)
    group.allreduce_async([values], [values], op, 1.0, 1.0, f"ringreduce.{name}", None).wait()
    return [int(value) for value in values]


def are_all_here(group: Group, name: str) -> bool:
    """Whether no member has joined. Collective over those that have not."""
    from ringreduce.ops import Sum  # which imports process sets, and they import this file

    return combined(group, f"{name}.ranks", [1], Sum) == [group.size]


class Handover(NamedTuple):
    """Where the members of a group meet to receive a memory file."""

    address: bytes
    secret: bytes

    @classmethod
    def announce(cls) -> Handover:
        """A new meeting place, for the leader to pass on."""
        return cls(*rendezvous.new_address())

    @classmethod
    def from_json(cls, pair: list[str]) -> Handover:
        """The meeting place as it comes out of an exchange."""
        address, secret = pair
        return cls(bytes.fromhex(address), bytes.fromhex(secret))

    def to_json(self) -> list[str]:
        """The meeting place as it goes into an exchange."""
        return [self.address.hex(), self.secret.hex()]

    @contextmanager
    def segment(
        self,
        label: str,
        nbytes: int,
        members: Sequence[int],
        rank: int,
        timeout_s: float,
        look: Callable[[], None],
    ) -> Iterator[int]:
        """A descriptor of one memory file of nbytes zero bytes, the same file on all members; closed on leaving.

        Args:
            members: ranks that meet, in one order on all of them; the first one creates the file.
            rank: this process among them.
            look: raises when a member will not come any more.
        """
        created = _core.memfd(label, nbytes) if rank == members[0] else None
        fd = created
        try:
            if len(members) > 1:
                meeting = (self.address, self.secret, timeout_s, look)
                fd = rendezvous.share_fd(created, members, rank, *meeting)
            assert fd is not None
            yield fd
        finally:
            for descriptor in {created, fd}:
                if descriptor is not None:
                    os.close(descriptor)
