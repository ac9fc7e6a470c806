"""A rank's membership of one torch group: from the store that torch hands over to a native group, until it is left.

Every group is a job of its own as far as the core is concerned: its own memory, engine and failure state, and ranks
from 0. So a group that fails, times out or is destroyed leaves the others alone.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import itertools
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from ringreduce import _core, plan
from ringreduce.errors import Error, NotInitializedError
from ringreduce.job import recording, store_rendezvous
from ringreduce.job.absent import AbsentGroup
from ringreduce.job.failure import failure_report, shutdown_cause, uncaught
from ringreduce.job.report_interval import Reported
from ringreduce.torch.profiling import profiled

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from ringreduce._core import Context, Group

_lives: dict[str, Iterator[int]] = defaultdict(itertools.count)
"""How often this process has been in a group of each label: as often as the other members."""

FORKED = (
    "{call}: this process was forked from a rank of a torch.distributed group and is no rank itself: a forked child "
    "(a DataLoader worker) may compute, and leaves communication to its parent."
)
LONGEST = timedelta(days=365)  # for a store, which has no word for "no limit"

_members: weakref.WeakSet[Membership] = weakref.WeakSet()


class TorchStore:
    """torch's store as a Store; remembers what it wrote, so that the next group of that name starts clean."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: list[str] = []

    def set(self, key: str, value: bytes) -> None:
        """Makes value visible to all ranks."""
        self._store.set(key, value)  # type: ignore[arg-type]  # the stubs know str only
        self._keys.append(key)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the key. Raises the builtin TimeoutError after timeout_s seconds; 0 = no limit."""
        try:
            self._store.wait([key], timedelta(seconds=timeout_s) if timeout_s > 0 else LONGEST)
        except RuntimeError as error:  # DistStoreError, or a bare RuntimeError from a FileStore
            if "timeout" not in str(error).lower():
                raise
            raise builtins.TimeoutError(str(error)) from error
        value: bytes = self._store.get(key)
        return value

    def has(self, key: str) -> bool:
        """Whether the key is there. A store that cannot tell (a user's own) is asked for the key, for 0.1 s."""
        try:
            return bool(self._store.check([key]))
        except (AttributeError, NotImplementedError, RuntimeError):
            pass
        try:
            self.get(key, store_rendezvous.LOOK_S)
        except builtins.TimeoutError:
            return False
        return True

    def hosts(self) -> list[str]:
        """The host that keeps the store, as this rank knows it; none for one that is a file or a user's own."""
        store: Any = self._store
        while isinstance(store, PrefixStore):
            store = getattr(store, "underlying_store", None)  # old versions of torch do not tell it
        return [store.host] if isinstance(store, TCPStore) else []

    def forget(self) -> None:
        """Deletes what this rank wrote; a store that cannot (a user's own) keeps it."""
        for key in self._keys:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._store.delete_key(key)
        self._keys.clear()


class Membership:
    """One group as this process belongs to it.

    Args:
        store: of this group alone.
        rank, size: within the group.
        timeout_s: of the rendezvous and of every operation; 0 = no limit.
        label: of its memory file, as /proc shows it.
        ranks: of the members among all ranks, in the group's order.

    Raises:
        TimeoutError: names who did not come. PeerLostError, ShutdownError: a rank of the default group, which lives,
            will not come.
        UnavailableError: the ranks are on several hosts, and there is no secret for connections between them.
    """

    def __init__(
        self, store: Store, rank: int, size: int, timeout_s: float, label: str, ranks: Sequence[int] = ()
    ) -> None:
        known = TorchStore(store)

        def segment() -> int:
            return _core.memfd(label[:200], _core.control_nbytes(size))

        joined = store_rendezvous.join_with_store(
            known,
            rank,
            size,
            timeout_s,
            segment,
            group=f"{label} {list(ranks)}",
            names=known.hosts(),
            check=_check_of(ranks),
        )
        wanted = plan.wanted()
        # Among all ranks, which are the default group's, perhaps of another backend; it is being made, or this is it.
        place = ranks[rank] if ranks else rank, dist.get_world_size() if dist.is_initialized() else size
        is_job = not dist.is_initialized() or dist.get_world_size() == size  # or the default group is being made
        with closing(joined), wanted.told():
            known.forget()  # all have read it
            self._context: Context = _core.Context(
                joined.memory.fd,
                rank,
                size,
                joined.memory.pidfds,
                os.uname().nodename,
                timeout_s,
                hosts=joined.hosts,
                tcp=joined.tcp,
                recorded_as=f"{label} {next(_lives[label])}",  # destroyed and made anew, a group has an old one's label
                job_ranks=list(ranks),
                plan=wanted.core(joined.hosts or [0] * size, is_job),
            )
        try:
            recording.begin_by_environment(*place)
        except BaseException as error:
            self._context.shutdown(shutdown_cause.why(error))
            raise
        self._group: Group = self._context.world
        if joined.hosts is not None:
            # So that no rank is in the next group of that name while another has not forgotten. On one host contexts
            # wait for each other.
            try:
                self.group.barrier(None)
            except BaseException:
                self._context.shutdown("")
                raise
        self._rank, self._place, self._label, self._ranks = rank, place, label, list(ranks)
        self._has_left = False
        self._on_leave: list[Callable[[], Any]] = []
        shutdown_cause.begin()
        _members.add(self)
        uncaught.tell_by(_fail_all, _leave_all)

    @property
    def group(self) -> Group:
        """The native group, or what stands for it in a forked child."""
        return profiled(self._group)

    def reported(self) -> Reported:
        """Of whom a ReportLog of this group tells. Raises NotInitializedError in a forked child."""
        self._check_not_forked("ReportLog")
        return Reported(self._context, self._rank, self._context.stats)

    def on_leave(self, call: Callable[[], Any]) -> None:
        """Registers what leave() does last."""
        self._on_leave.append(call)

    def set_timeout(self, timeout_s: float) -> None:
        """Replaces the timeout of operations; 0 = no limit. Raises NotInitializedError in a forked child."""
        self._check_not_forked("set_timeout")
        self._context.set_timeout(timeout_s)

    def leave(self, error: BaseException | None = None) -> None:
        """Leaves the group: pending operations fail with ShutdownError here, and elsewhere if they need this rank.

        error: the exception that makes this rank leave; elsewhere they fail with PeerLostError, which tells it.
        Does not wait for other ranks, but between hosts for at most 2 s, so that they are told. Does nothing twice, and
        nothing in a forked child, where the group is the parent's.
        """
        if self._is_inherited():
            return
        self._context.shutdown(shutdown_cause.why(error))
        if not self._has_left:
            self._has_left = True
            failure_report.write(self._context, *self._place, self._label, self._ranks)
        for call in self._on_leave:
            call()
        self._on_leave.clear()

    def fail_as_lost(self, why: str) -> None:
        """Has all ranks' operations fail with PeerLostError, whose text says why. Nothing in a forked child."""
        if not self._is_inherited():
            self._context.fail_as_lost(why)

    def forget(self) -> None:
        """For a forked child: what it inherited is its parent's."""
        self._context.forget_after_fork()
        self._on_leave.clear()
        self._group = AbsentGroup(NotInitializedError, FORKED)  # type: ignore[assignment]

    def _is_inherited(self) -> bool:
        """Whether this process is a child that was forked from the member."""
        return isinstance(self._group, AbsentGroup)

    def _check_not_forked(self, call: str) -> None:
        if self._is_inherited():
            raise NotInitializedError(FORKED.format(call=call))


def _check_of(ranks: Sequence[int]) -> Callable[[], None] | None:
    """What raises once one of these global ranks has died or left, as the default group sees it.

    None while that group is made, where it is another backend's, and where it has failed: survivors may make new ones.
    """
    world = getattr(dist.group.WORLD, "_member", None)
    if not isinstance(world, Membership):
        return None
    check = world._group.check_members
    try:
        check([])
    except Error:
        return None
    return partial(check, list(ranks))


def _fail_all(why: str) -> None:
    """An exception ends this process. In a forked child there is no member."""
    for member in list(_members):
        member.fail_as_lost(why)


def _leave_all() -> None:
    for member in list(_members):
        member.leave()


def _forget_all() -> None:
    for member in list(_members):
        member.forget()
    _members.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_forget_all)
