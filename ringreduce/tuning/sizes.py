"""The sizes that depend on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringreduce import _core

if TYPE_CHECKING:
    from ringreduce._core import Group


@dataclass(frozen=True)
class Sizes:
    """Of the staging chunk, and of the largest eager message, in bytes."""

    chunk_nbytes: int = _core.CHUNK_DEFAULT
    eager_nbytes: int = _core.EAGER_DEFAULT

    def set(self, group: Group) -> None:
        """Puts them in force. Collective over the group."""
        group.set_sizes(self.chunk_nbytes, self.eager_nbytes)
