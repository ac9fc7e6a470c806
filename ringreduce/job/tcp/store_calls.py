"""Calls of a store of torch that end: a TCPStore waits without a limit for an answer of the process that keeps it.

Where that process is stopped, or its host has gone, check(), wait() and even the store's constructor do not return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

LAST_ANSWER_S = 1.0
"""How much longer than its own time a call is waited for, in which a store that works can say that it is over."""


class Call:
    """One call, which may have returned."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self._what: Callable[[], Any] | None = what
        self._has_ended = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Calls, in the thread."""
        assert self._what is not None
        try:
            self._answer = self._what()
        except BaseException as error:  # raised by answer()
            self._error = error
        self._what = None
        self._has_ended.set()

    def has_ended(self, wait_s: float | None = 0.0) -> bool:
        """Whether the call has returned or raised, for which it waits so long; None = no limit."""
        return self._has_ended.wait(wait_s)

    def answer(self) -> Any:
        """What the call has returned. Raises what it has raised."""
        if self._error is not None:
            raise self._error
        return self._answer


class StoreCalls:
    """Makes the calls of one store in their order, in a thread of its own; close() ends it.

    A call that does not return keeps those after it from being made. The thread is a daemon, so that such a call does
    not keep the process from ending.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(self, what: Callable[[], Any]) -> Call:
        """Has the thread make a call."""
        if self._thread is None:
            self._thread = threading.Thread(target=_run, args=(self._queue,), name="ringreduce store", daemon=True)
            self._thread.start()
        call = Call(what)
        self._queue.put(call)
        return call

    def close(self) -> None:
        """Ends the thread, but does not wait for a call that does not return. Idempotent."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(LAST_ANSWER_S)
            self._thread = None


def _run(queue: SimpleQueue[Call | None]) -> None:
    while (call := queue.get()) is not None:
        call.run()
        del call  # it holds what the store has answered, and may be the last that does
