"""What ringreduce.run() sends to its ranks, and what comes back: a call, and a result of each rank.

The call travels in a memory file (by cloudpickle where it is installed, else by pickle). Each rank's result or
exception comes back in another, from another host by a pipe, with its length before it (worker.py): a rank that is
killed while it writes leaves none.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.launch.job import Rank
from ringreduce.launch.worker import LENGTH


def pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """sys.path, then the call; the path comes first, for the worker needs it to unpickle the rest.

    Raises InvalidArgumentError where it cannot be sent to another process.
    """
    try:
        import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]

        dumps: Callable[[Any], bytes] = cloudpickle.dumps
    except ImportError:
        dumps = pickle.dumps
        if getattr(fn, "__module__", None) == "__main__":
            raise InvalidArgumentError(
                f"{fn!r} is defined in __main__, which other processes cannot import: "
                "pip install cloudpickle, or move the function into a module"
            ) from None
    try:
        call = dumps((fn, args, kwargs))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{fn!r} or its arguments cannot be sent to another process: {error}. Functions at module level can; "
            "so can most others once cloudpickle is installed"
        ) from error
    return pickle.dumps((sys.path, call))


def memory_file(name: str, stack: ExitStack) -> int:
    """Its descriptor, which the stack closes."""
    fd = os.memfd_create(name)
    stack.callback(os.close, fd)
    return fd


class Result:
    """What one rank has returned or raised. Takes the bytes of a rank of another host.

    Args:
        stack: closes the file.
    """

    kept = True

    def __init__(self, rank: int, stack: ExitStack) -> None:
        self._rank = rank
        self.fd = memory_file(f"ringreduce.result.{rank}", stack)

    def feed(self, data: bytes) -> None:
        """Takes what has come."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def end(self) -> None:
        """Nothing more will come."""

    def value(self) -> Any:
        """What the function has returned. Raises Error where there is nothing."""
        raw = self._content()
        if raw is None:
            raise Error(f"[run] rank {self._rank} exited before the function returned (os._exit?)")
        _, _, value = pickle.loads(raw)
        return pickle.loads(value)

    def failure(self, failed: Rank, size: int) -> Error:
        """Why the rank has failed, with its traceback and its exception, if it has one."""
        text = f"[run] rank {self._rank} of {size} {failed.how_it_ended()}"
        raw = self._content()
        if raw is None:
            return Error(text)
        _, trace, exception = pickle.loads(raw)
        error = Error(f"{text}\n\n{trace}")
        try:
            error.__cause__ = pickle.loads(exception)
        except Exception:  # any class may refuse to be rebuilt; its traceback is in the text
            error.__cause__ = None
        return error

    def _content(self) -> bytes | None:
        raw = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        if len(raw) < LENGTH.size or len(raw) != LENGTH.size + LENGTH.unpack_from(raw)[0]:
            return None
        return raw[LENGTH.size :]
