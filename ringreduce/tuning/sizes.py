"""The sizes that depend on the machine."""

from __future__ import annotations

from collections.abc import Sequence
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


def default_sizes(group: Group, ranks_by_host: Sequence[int], cores: int) -> Sizes:
    """Those of the package; the eager limit as init() sets it without a plan, where it depends on ranks and hosts.

    Args:
        group: of all ranks, before anybody has set its sizes.
        cores: how many the ranks share.
    """
    if len(ranks_by_host) > 1 or sum(ranks_by_host) > cores:
        return Sizes(eager_nbytes=group.sizes()[1])
    return Sizes()  # init() may have measured others, in less time than there is here
