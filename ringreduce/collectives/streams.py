"""Handles of operations on GPU memory: what waits is a stream, not the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ringreduce import state
from ringreduce.collectives.handles import Handle
from ringreduce.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ringreduce import _core
    from ringreduce.gpu import Operand

T = TypeVar("T")


class StreamWork:
    """An operation on GPU memory, as handles use those of the core: what waits is the current stream."""

    __slots__ = ("_operand", "_work")

    def __init__(self, work: _core.Work, operand: Operand) -> None:
        self._work = work
        self._operand = operand

    def wait(self, timeout: float | None = None) -> None:
        """Lets what is put on the current stream from here on wait for the operation, and returns.

        With a timeout, in seconds, this thread waits instead. Raises the error of an operation that has failed.
        """
        if timeout is not None:
            self._work.wait(timeout)
        self._work.hold(self._operand.current_stream())

    def done(self) -> bool:
        """True once the operation is done or has failed."""
        return self._work.done()

    def finish(self) -> _core.Work:
        """The core's, done: how much came is known only then."""
        if self._work.captured:
            raise InvalidArgumentError(
                "how many rows an allgather or alltoall brings is not known while a CUDA graph is captured; call it "
                "outside of the graph"
            )
        self._work.wait()
        return self._work


class StreamHandle(Handle[T]):
    """A Handle of an operation on GPU memory: waiting for it is what streams do.

    wait(), like synchronize(), has the array library's current stream wait for the operation and returns at once; every
    call does so, with the stream that is current then. wait(timeout) waits on the host. Both raise the error of an
    operation that has failed by then; done(), like poll(), tells whether it has ended.
    """

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> T:
        """The result, for use on the current stream from here on."""
        if self._finish is None and self._forks == state.forks:
            self._work.wait(timeout)
        return super().wait(timeout)

    def done(self) -> bool:
        """True once the operation is done on the GPU, or has failed."""
        if self._forks != state.forks:
            return super().done()
        return self._work.done()


def handle(work: _core.Work, operand: Operand, finish: Callable[[Any], T], keep: Any = None) -> StreamHandle[T]:
    """The handle of an operation that comes after the operand's stream."""
    return StreamHandle(StreamWork(work, operand), finish, keep)
