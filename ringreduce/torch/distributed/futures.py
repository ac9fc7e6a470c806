"""Futures of a process group's works, and the names of the collectives that their callbacks call.

A callback runs in the thread that completes its future, or, where the future is complete already, in the thread that
adds the callback. So a collective of a callback comes before the program's next one on some ranks, and after it on
others. Collectives without a name are matched by their order. Those of a callback have names instead, made of the
order in which works were begun and callbacks added, which is the same on all ranks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

PREFIX = "torch.callback."


class Scope:
    """Numbers what a program, or one callback, begins. Thread-safe."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._count = itertools.count()

    def next(self) -> str:
        """A label that no other call returns."""
        return f"{self._label}.{next(self._count)}"


class Current(threading.local):
    """The scope of the callback that this thread runs; None outside of callbacks."""

    scope: Scope | None = None


_current = Current()


def call_name() -> str | None:
    """The name of a collective that this thread calls now; None outside of callbacks, where the order tells."""
    return None if _current.scope is None else PREFIX + _current.scope.next()


def label_of(program: Scope | None) -> str | None:
    """The label of a work that this thread begins now.

    Args:
        program: numbers the works that are not begun in a callback; None: their order differs between ranks.
    """
    scope = _current.scope or program
    return None if scope is None else scope.next()


class Future(torch.futures.Future[Any]):
    """A future of torch's whose callbacks may call collectives.

    Args:
        label: of its work; None: collectives of its callbacks have no names.
        devices: the GPU whose memory the value lies in; None: the host's.
    """

    def __init__(self, label: str | None, devices: Sequence[torch.device] | None = None) -> None:
        super().__init__(devices=None if devices is None else list(devices))
        self._callbacks = None if label is None else Scope(label)
        self._devices = devices
        self._error: Exception | None = None

    def then(self, callback: Callable[[Any], Any]) -> Future:
        """A future of what the callback returns when it is called with this one."""
        label = None if self._callbacks is None else self._callbacks.next()
        after = Future(label, self._devices)

        def run(_: Any) -> None:
            try:
                value = _called(callback, self, label)
            except Exception as error:
                after.fail(error)
            else:
                after.set_result(value)

        super().add_done_callback(run)
        return after

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Calls the callback with this future once it is complete. torch logs what the callback raises."""
        label = None if self._callbacks is None else self._callbacks.next()
        super().add_done_callback(lambda _: _called(callback, self, label))

    def fail(self, error: Exception) -> None:
        """Completes the future with an error."""
        self._error = error
        super().set_result(_Failed.of(error))

    def wait(self) -> Any:
        """Blocks until the future is complete; its value. Raises its error."""
        return self._outcome(super().wait)

    def value(self) -> Any:
        """The value of a complete future. Raises its error."""
        return self._outcome(super().value)

    def _outcome(self, get: Callable[[], Any]) -> Any:
        try:
            value = get()
        except Exception:
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        return value


def _called(callback: Callable[[Any], Any], future: Future, label: str | None) -> Any:
    outer, _current.scope = _current.scope, None if label is None else Scope(label)
    try:
        return callback(future)
    finally:
        _current.scope = outer


class _Failed:
    """The value of a future with an error, for C++ (DDP), which knows no error that Python has set.

    C++ looks for tensors in a value by pickling it: that raises the error. Where it takes the value for a tensor, it
    names the value's type, which is made for this error and has its text as name.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    @classmethod
    def of(cls, error: Exception) -> _Failed:
        kind: type[_Failed] = type(f"{type(error).__name__}: {error}", (cls,), {})
        return kind(error)

    def __reduce_ex__(self, _: Any) -> Any:
        raise self._error
