"""What ringreduce.run() sends to its ranks, and what comes back: a call, and a result of each rank.

The call travels in a memory file (by cloudpickle where it is installed, else by pickle). Each rank's result or
exception comes back in another, from another host by a pipe, with its length before it (worker.py): a rank that is
killed while it writes leaves none.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from ringreduce.errors import Error, InvalidArgumentError, MismatchError, UnavailableError
from ringreduce.launch.job import Rank
from ringreduce.launch.worker import LENGTH, write


def pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], path: Sequence[str]) -> bytes:
    """The ranks' sys.path, then the call; the path comes first, for the worker needs it to unpickle the rest.

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
    return pickle.dumps((list(path), call))


def memory_file(name: str, stack: ExitStack) -> int:
    """Its descriptor, which the stack closes. Raises UnavailableError where no descriptor is left."""
    try:
        fd = os.memfd_create(name)
    except OSError as error:
        raise UnavailableError(
            f"[run] no memory file for {name}: {error.strerror} (ulimit -n says how many)"
        ) from error
    stack.callback(os.close, fd)
    return fd


def append(fd: int, data: bytes | memoryview) -> None:
    """Raises UnavailableError where there is no room."""
    try:
        write(fd, data)
    except OSError as error:
        raise UnavailableError(f"[run] {len(data)} bytes of a call or a result do not fit: {error.strerror}") from error


class Result:
    """What one rank has returned or raised. Takes the bytes of a rank of another host.

    Args:
        stack: closes the file.
    """

    kept = True

    def __init__(self, rank: int, stack: ExitStack) -> None:
        self._rank = rank
        self._stack = stack
        self._fd = -1
        self._left: int | None = None  # bytes of the answer that have not come; None: its length has not
        self._head = b""

    @property
    def fd(self) -> int:
        """Of the file that the answer is in."""
        if self._fd < 0:
            self._fd = memory_file(f"ringreduce.result.{self._rank}", self._stack)
        return self._fd

    def feed(self, data: bytes) -> None:
        """Takes what has come. Raises MismatchError for more than one answer."""
        rest = memoryview(data)
        if self._left is None:
            rest = memoryview(self._head + data)
            self._head = bytes(rest[: LENGTH.size])
            if len(rest) < LENGTH.size:
                return
            (self._left,) = LENGTH.unpack_from(rest)
            append(self.fd, self._head)
            rest = rest[LENGTH.size :]
        self._left -= len(rest)
        if self._left < 0:
            raise MismatchError(f"more than the answer of rank {self._rank}")
        append(self.fd, rest)

    def end(self) -> None:
        """Nothing more will come."""

    def value(self, rank: Rank, why_lost: str) -> Any:
        """What the function has returned.

        Args:
            rank: whose it is.
            why_lost: why there may be none, where it is known.

        Raises Error where there is none, or where it cannot be unpickled here.
        """
        answer = self._answer()
        if answer is None:
            if why_lost:
                raise Error(f"[run] the result of rank {rank.number} on host {rank.host} was lost: {why_lost}")
            raise Error(
                f"[run] rank {rank.number} exited before the function returned (os._exit?), on host {rank.host}"
            )
        try:
            return pickle.loads(answer[2])
        except Exception as error:  # of any class: unpickling runs code of the user's
            raise Error(
                f"[run] the result of rank {rank.number} on host {rank.host} cannot be unpickled here: "
                f"{type(error).__name__}: {error}. Return what this process can import"
            ) from error

    def failure(self, failed: Rank, size: int) -> Error:
        """Why the rank has failed, with its traceback and its exception, if it has one."""
        text = f"[run] rank {failed.number} of {size} {failed.how_it_ended()}, on host {failed.host}"
        answer = self._answer()
        if answer is None:
            return Error(text)
        has_returned, trace, exception = answer
        if has_returned:
            return Error(f"{text}, after the function had returned")
        error = Error(f"{text}\n\n{trace}")
        try:
            error.__cause__ = pickle.loads(exception)
        except Exception:  # any class may refuse to be rebuilt; its traceback is in the text
            error.__cause__ = None
        return error

    def _answer(self) -> tuple[bool, str, bytes] | None:
        size = 0 if self._fd < 0 else os.fstat(self._fd).st_size
        if size < LENGTH.size or size != LENGTH.size + LENGTH.unpack(os.pread(self._fd, LENGTH.size, 0))[0]:
            return None
        with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as content, memoryview(content) as view:
            has_returned, trace, pickled_value = pickle.loads(view[LENGTH.size :])
        return has_returned, trace, pickled_value
