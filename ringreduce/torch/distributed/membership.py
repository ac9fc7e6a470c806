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
from ringreduce.job.tcp.rendezvous import address_text
from ringreduce.job.tcp.store_calls import LAST_ANSWER_S, Call, StoreCalls
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
FORGET_S = 5.0
"""How long a rank waits until the store has deleted what it wrote, which the next group of that name would read."""
LONGEST = timedelta(days=365)  # for a store, which has no word for "no limit"

_members: weakref.WeakSet[Membership] = weakref.WeakSet()


class TorchStore:
    """torch's store as a Store; remembers what it wrote, so that the next group of that name starts clean.

    The calls of a TCPStore are made in a thread, for they may not return (store_calls.py); its owner closes it. Another
    store's are made here: a user's own may be for one thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: list[str] = []
        tcp: Any = store
        while isinstance(tcp, PrefixStore):
            tcp = getattr(tcp, "underlying_store", None)  # old versions of torch do not tell it
        self._tcp: TCPStore | None = tcp if isinstance(tcp, TCPStore) else None
        self._calls = StoreCalls()
        self._look: tuple[str, Call] | None = None
        """The key and the call of a has() that has not returned yet."""
        self._last: Call | None = None

    def set(self, key: str, value: bytes) -> None:
        """Makes value visible to all ranks, after the calls that have not returned yet."""
        self._keys.append(key)
        call = self._begun(lambda: self._store.set(key, value))  # type: ignore[arg-type]  # the stubs know str only
        if call.has_ended(LAST_ANSWER_S):
            call.answer()

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the key. Raises the builtin TimeoutError after timeout_s seconds; 0 = no limit."""
        call = self._begun(lambda: self._get(key, timeout_s))
        if not call.has_ended(timeout_s + LAST_ANSWER_S if timeout_s > 0 else None):
            raise builtins.TimeoutError("the store does not answer")
        value: bytes = call.answer()
        return value

    def has(self, key: str) -> bool:
        """Whether the key is there; False while the store has not answered, for which it waits 0.1 s at first."""
        if self._look is not None and self._look[0] == key:
            look, wait_s = self._look[1], 0.0
        else:
            look, wait_s = self._begun(lambda: self._has(key)), store_rendezvous.LOOK_S
        has_ended = look.has_ended(wait_s)
        self._look = None if has_ended else (key, look)
        return has_ended and bool(look.answer())

    def silent(self) -> str:
        """Where the store is, if it has not answered the last call, for which it waits a moment; else ""."""
        if self._tcp is None or self._last is None or self._last.has_ended(LAST_ANSWER_S):
            return ""
        return address_text(self._tcp.host, self._tcp.port)

    def hosts(self) -> list[str]:
        """The host that keeps the store, as this rank knows it; none for one that is a file or a user's own."""
        return [] if self._tcp is None else [self._tcp.host]

    def forget(self) -> None:
        """Deletes what this rank wrote; a store that cannot (a user's own) or does not answer keeps it."""
        keys = list(self._keys)
        self._keys.clear()
        self._begun(lambda: self._delete(keys)).has_ended(FORGET_S)

    def close(self) -> None:
        """Makes no more calls."""
        self._calls.close()

    def _begun(self, what: Callable[[], Any]) -> Call:
        if self._tcp is not None:
            self._last = call = self._calls.begin(what)
            return call
        call = Call(what)
        call.run()
        return call

    def _get(self, key: str, timeout_s: float) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=timeout_s) if timeout_s > 0 else LONGEST)
        except RuntimeError as error:  # DistStoreError, or a bare RuntimeError from a FileStore
            if "timeout" not in str(error).lower():
                raise
            raise builtins.TimeoutError(str(error)) from error
        value: bytes = self._store.get(key)
        return value

    def _has(self, key: str) -> bool:
        """A store that cannot tell (a user's own) is asked for the key, for 0.1 s."""
        try:
            return bool(self._store.check([key]))
        except (AttributeError, NotImplementedError, RuntimeError):
            pass
        try:
            self._get(key, store_rendezvous.LOOK_S)
        except builtins.TimeoutError:
            return False
        return True

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._store.delete_key(key)


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
        def segment() -> int:
            return _core.memfd(label[:200], _core.control_nbytes(size))

        with closing(TorchStore(store)) as known:
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
            # Among all ranks, which are the default group's, perhaps of another backend; it is being made, or this is
            # it.
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
                    # Destroyed and made anew, a group has an old one's label.
                    recorded_as=f"{label} {next(_lives[label])}",
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
