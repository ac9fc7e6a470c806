"""The process-wide state: the job this process is a rank of, or none.

basics.init() and basics.shutdown() replace `current` whole; everyone else reads it. A forked child has no job: it is
no rank, and the parent's native context is set aside untouched (its threads do not exist here).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ringreduce.errors import NotInitializedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringreduce._core import Context, MpiCommunicator
    from ringreduce.job.environment import Placement
    from ringreduce.job.process_sets import ProcessSet

NOT_INITIALIZED = (
    "ringreduce has not been initialized; use ringreduce.init(). (Horovod has not been initialized; use hvd.init().)"
)


@dataclass(frozen=True)
class Reached:
    """By what groups of a job's ranks can meet over TCP later, as those of torch.distributed do."""

    ip: str
    """Of rank 0, as ranks on other hosts reach it."""
    secret: bytes = field(repr=False)
    """The same on all ranks, and known to nobody else."""


class Running:
    """A running job as this rank sees it."""

    __slots__ = (
        "communicator",
        "context",
        "copied_before",
        "dynamic",
        "first_set_id",
        "hosts",
        "placement",
        "process_sets",
        "reached",
        "timeout_s",
    )

    def __init__(
        self,
        context: Context,
        placement: Placement,
        timeout_s: float,
        dynamic: bool,
        copied_before: int,
        hosts: list[int],
        communicator: MpiCommunicator | None,
        reached: Reached | None = None,
    ) -> None:
        self.context = context
        self.placement = placement
        self.process_sets: dict[int, ProcessSet] = {}
        self.first_set_id = next_set_id  # as this process has counted; the first is the largest of all ranks'
        self.timeout_s = timeout_s  # for meetings of ranks after init()
        self.dynamic = dynamic  # whether process sets may be added after init()
        self.copied_before = copied_before  # buffers.copied() at init()
        self.hosts = hosts  # by rank: the lowest rank on the same host
        self.communicator = communicator  # of MPI; None on one host
        self.reached = reached  # None: the ranks did not meet over TCP

    def here(self, ranks: Sequence[int]) -> list[int]:
        """Those of some ranks that share this host's memory, in the same order."""
        return [rank for rank in ranks if self.hosts[rank] == self.hosts[self.placement.rank]]


current: Running | None = None
next_set_id = 1
"""Counts the process sets of all jobs of this process. Functions that a framework has traced hold a set by its id: with
ids that began again in the next job they would communicate with other ranks than those that they were traced for.
"""
forked_from: Placement | None = None
"""In a forked child: the place of the rank it was forked from."""
forks = 0
"""How often this process and its ancestors were forked from ranks: what was made before belongs to an ancestor."""

_set_aside: list[Running] = []
_on_fork: list[Callable[[Running, str], None]] = []
_before_shutdown: list[Callable[[], None]] = []
_before_join: list[Callable[[], None]] = []


def require() -> Running:
    """The running job. Raises NotInitializedError when there is none."""
    if current is None:
        raise NotInitializedError(absence())
    return current


def absence() -> str:
    """Why there is no job: the text of NotInitializedError."""
    if forked_from is None:
        return NOT_INITIALIZED
    return (
        f"{NOT_INITIALIZED} This process was forked from rank {forked_from.rank} and is no rank itself: a forked child "
        "(a DataLoader worker) may compute, and leaves communication to its parent."
    )


def on_fork(forget: Callable[[Running, str], None]) -> None:
    """Registers what a forked child of a rank calls, with the parent's job and the text of absence()."""
    _on_fork.append(forget)


def before_shutdown(finish: Callable[[], None]) -> None:
    """Registers what shutdown() calls first, while there is a job: it finishes what is under way. It must not raise."""
    _before_shutdown.append(finish)


def finish_work() -> None:
    """Calls what before_shutdown() has registered."""
    for finish in _before_shutdown:
        finish()


def before_join(finish: Callable[[], None]) -> None:
    """Registers what join() calls first, and so do barrier(), remove_process_set() and the functions for objects: it
    waits until what this thread has in flight is done, and raises its error."""
    _before_join.append(finish)


def finish_in_flight() -> None:
    """Calls what before_join() has registered: a framework that starts work and returns before it has run.

    Where this process is no rank, as a forked child, there is nothing to wait for: threads that would end it may not be
    there.
    """
    if current is None:
        return
    for finish in _before_join:
        finish()


def _forget_in_child() -> None:
    global current, forked_from, forks
    if current is None:
        return
    parents = current
    current, forked_from, forks = None, parents.placement, forks + 1
    parents.context.forget_after_fork()
    _set_aside.append(parents)  # never freed here: freeing would join threads that this process does not have
    for forget in _on_fork:
        forget(parents, absence())


os.register_at_fork(after_in_child=_forget_in_child)
