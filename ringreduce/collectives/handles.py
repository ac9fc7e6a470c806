"""Handles: what the *_async functions return."""

from __future__ import annotations

import time
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ringreduce import state
from ringreduce.errors import Error, InvalidArgumentError, NotInitializedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

T = TypeVar("T")

_UNFINISHED: Any = object()


class Waitable(Protocol):
    """What a handle waits for: an operation of the core, or what stands for one or several."""

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is done, at most timeout seconds, and raises its error."""

    def done(self) -> bool:
        """True once wait() would not block."""

    def withdraw(self) -> None:
        """Has the core leave the operands alone from here on, for a synchronous call that an exception has ended."""


class Works:
    """Several submitted operations, waited for and polled as one."""

    __slots__ = ("each",)

    def __init__(self, each: Sequence[Any]) -> None:  # operations of the core, or handles
        self.each = each

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all of them, then raises the first error. The timeout, in seconds, is for all together."""
        deadline = None if timeout is None else time.monotonic() + timeout
        error: Exception | None = None
        for work in self.each:
            try:
                work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except (Error, RuntimeError, MemoryError) as caught:
                if not isinstance(caught, Error) and not work.done():
                    raise  # a signal's handler has raised it, and it ends the wait
                error = error or caught
        if error is not None:
            raise error

    def withdraw(self) -> None:
        """Withdraws each of them that has not ended, also where withdrawing one before it raises."""
        error: BaseException | None = None
        for work in self.each:
            try:
                work.withdraw()
            except BaseException as caught:  # as a second Ctrl-C does; the operands of the rest are left alone too
                error = error or caught
        if error is not None:
            raise error

    def done(self) -> bool:
        """True once wait() would not block."""
        finished = [work.done() for work in self.each]  # all are asked: that frees their names
        return all(finished)


class Submitted:
    """Submits an operation for each tuple of arguments, and gives the block their works, to make one handle of.

    When an exception such as KeyboardInterrupt ends it, nobody gets the handle, and the caller goes on with the
    operands: the operations are withdrawn. Those that were not submitted yet are not called, as where an exception
    ends a loop of calls: to submit them could block until the other ranks have called the first ones.

    An Error withdraws nothing: it is the group's, whose operations have ended, or that of one operation that cannot be
    submitted, as where its name is in use. Then those before it go on: to withdraw them between hosts would fail the
    group.
    """

    __slots__ = ("_calls", "_submit", "_works")

    def __init__(self, submit: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> None:
        self._submit = submit
        self._calls = calls
        self._works: list[Any] = []

    def __enter__(self) -> list[Any]:
        try:
            # In C, so that no signal's handler runs between an operation's submission and its place in the list.
            self._works.extend(starmap(self._submit, self._calls))
        except BaseException as error:
            self._end(error)
            raise
        return self._works

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, Error):
            Works(self._works).withdraw()


class Handle(Generic[T]):
    """A submitted operation.

    Dropping a handle does not cancel the operation. Its name (if it has one) is free again once the handle was waited
    on, polled done, or dropped after it was done. Waiting from several threads is safe.

    Args:
        finish: makes the result.
        keep: objects that must live until then, such as the operands.
    """

    __slots__ = ("__weakref__", "_finish", "_forks", "_keep", "_value", "_work")

    def __init__(self, work: Waitable, finish: Callable[[Any], T], keep: Any = None) -> None:
        self._work = work
        self._forks = state.forks
        self._finish: Callable[[Any], T] | None = finish
        self._keep = keep
        self._value: T = _UNFINISHED

    def wait(self, timeout: float | None = None) -> T:
        """Blocks until the operation has finished and returns its result.

        Args:
            timeout: seconds; None waits without limit (the group's own timeout still holds).

        Raises:
            TimeoutError: the timeout ran out; the operation stays pending and can be waited on again.
            HorovodInternalError: the operation failed (MismatchError, PeerLostError, ShutdownError, ...).
        """
        finish = self._finish
        if finish is not None:
            if state.forks != self._forks:
                raise NotInitializedError(state.absence())
            self._work.wait(timeout)
            self._value = finish(self._work)
            self._finish = self._keep = None
        return self._value

    def wait_or_withdraw(self) -> T:
        """wait(), for a synchronous call, whose caller never gets the handle.

        When an exception ends the wait, such as KeyboardInterrupt, the caller goes on with the operands: nothing reads
        or writes them from here on. What all ranks are in is finished first; what not all have called is withdrawn, and
        the other ranks get MismatchError. Between hosts, and on a GPU, that fails the whole group.
        """
        try:
            return self.wait()
        except BaseException:
            self.withdraw()
            raise

    def withdraw(self) -> None:
        """Has the core leave the operands alone from here on; no effect on what has ended."""
        if self._finish is not None and state.forks == self._forks:
            self._work.withdraw()

    def done(self) -> bool:
        """True once wait() would not block, also when the operation failed. Raises NotInitializedError in a fork."""
        if self._finish is None:
            return True
        if state.forks != self._forks:
            raise NotInitializedError(state.absence())
        return self._work.done()

    @property
    def result(self) -> T:
        """The result; waits for it like wait()."""
        return self.wait()


def wait_or_withdraw(work: Waitable) -> None:
    """As Handle.wait_or_withdraw(), for what has no handle."""
    try:
        work.wait()
    except BaseException:
        work.withdraw()
        raise


def numbered(name: str | None, index: int, count: int) -> str | None:
    """The name of one tensor of several; a single one has the name itself."""
    return name if name is None or count == 1 else f"{name}_{index + 1}of{count}"


def synchronize(handle: Handle[T]) -> T:
    """Waits for an asynchronous operation and returns its result; the same as handle.wait().

    Raises:
        InvalidArgumentError: not a handle.
        HorovodInternalError: the operation failed.
    """
    return _checked(handle).wait()


def poll(handle: Handle[Any]) -> bool:
    """True when the operation has finished, so that synchronize() will not block.

    Raises:
        InvalidArgumentError: not a handle.
    """
    return _checked(handle).done()


def _checked(handle: Handle[T]) -> Handle[T]:
    if isinstance(handle, Handle):
        return handle
    raise InvalidArgumentError(f"Handle {handle!r} was not created or has been cleared.")
