"""What an operation of a process group returns: torch.distributed's Work over one of the core's.

A future is completed by a thread that blocks in the core until the operation has finished; there is one such thread for
a group's collectives, which finish in order, and one for the messages from and to each peer. They start when the first
future is asked for (DDP asks), so a group that is only waited on has none. Of a GPU's memory it copies on a stream of
its own, since its default stream has what the program has put there.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist

from ringreduce.collectives.handles import Works
from ringreduce.errors import UnavailableError
from ringreduce.job.deadline import Deadline
from ringreduce.torch.distributed import futures

if TYPE_CHECKING:
    from ringreduce import _core

    Native: TypeAlias = "_core.Work | Several"

NO_LIMIT = timedelta(0)
JOIN_S = 5.0  # for a completer to end once its group has been left; it only has to hand out errors


def seconds(timeout: timedelta | None) -> float | None:
    """torch's timeout in seconds; None where it means none (None, 0, or the negative value of an unset one)."""
    limit = None if timeout is None else timeout.total_seconds()
    return limit if limit is not None and limit > 0 else None


class Completer:
    """A thread that waits for works in the order in which they came, and completes their futures.

    Args:
        program: counts the collectives of the works' group; None: the works are messages, which not all ranks have.
    """

    def __init__(self, program: futures.Calls | None = None) -> None:
        self.program = program
        self._queue: SimpleQueue[tuple[Work, torch.futures.Future[None]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def is_stopped(self) -> bool:
        """Whether stop() was called: futures are completed by whoever asks for them."""
        return self._stopped

    def complete(self, work: Work, future: torch.futures.Future[None]) -> None:
        """Completes the future when the work has finished, well or not."""
        with self._lock:
            # Within the thread this is a callback of an earlier future, which may wait for this one (PowerSGD's does).
            here = self._stopped or threading.current_thread() is self._thread
            if not here:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="ringreduce completer", daemon=True)
                    self._thread.start()
                self._queue.put((work, future))
        if here:
            work.settle(future)

    def stop(self) -> None:
        """Ends the thread, once the group has been left; what is still queued has failed by then."""
        with self._lock:
            self._stopped = True
            self._queue.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future = item
            try:
                with work.own_stream():
                    work.settle(future)
            except Exception as error:  # of a GPU that is broken
                try:
                    work.fail(error, future)
                except Exception as another:  # nor can torch complete a future then
                    warnings.warn(f"a future of an operation on a GPU stays incomplete: {another}", stacklevel=1)
            del item, work, future  # the tensors go now, not when the next operation comes


class Work(dist.Work):
    """One operation in flight.

    Args:
        native: the core's operation; None if it has finished already.
        result: the tensors that result() gives, and the future.
        finish: moves the result to where the caller wants it; called once, before wait() returns.
        completer: for futures.
        limit_s: how long wait() waits when it is not told; None = until the operation ends or its group fails.
        is_sync: torch waits at once, and nobody gets this work. When an exception ends that wait, such as
            KeyboardInterrupt, the caller goes on with the tensors, so nothing reads or writes them from there on:
            Handle.wait_or_withdraw() says what becomes of the operation.
    """

    def __init__(
        self,
        native: Native | None,
        result: Sequence[torch.Tensor],
        finish: Callable[[Any], None] | None = None,
        completer: Completer | None = None,
        limit_s: float | None = None,
        is_sync: bool = False,
    ) -> None:
        super().__init__()
        self._native = native
        self._result = list(result)
        self._finish = finish
        self._completer = completer
        self._limit_s = limit_s
        self.is_sync = is_sync
        self._lock = threading.Lock()
        self._ended = native is None
        self._error: Exception | None = None
        program = None if completer is None else completer.program
        self._label = None if program is None else futures.work_label(program)
        self._ranks = () if program is None else program.ranks
        self._future: torch.futures.Future[Any] | None = None
        self._event: torch.cuda.Event | None = None  # on a GPU: after what finish() has put on a stream
        self._is_on_gpu = bool(self._result) and self._result[0].is_cuda

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Blocks until the operation has finished; True. On a GPU the current stream waits for the last copies.

        Raises:
            TimeoutError: the timeout ran out; the operation stays pending.
            HorovodInternalError: the operation failed (MismatchError, PeerLostError, TimeoutError of the group, ...).
        """
        if not self._ended:
            try:
                self._end(seconds(timeout) or self._limit_s)
            except BaseException:
                if self.is_sync:
                    self.withdraw()
                raise
        if self._event is not None:  # another thread may have made it, on its stream
            torch.cuda.current_stream(self._result[0].device).wait_event(self._event)
        if self._error is not None:
            raise self._error
        return True

    def withdraw(self) -> None:
        """Has the core leave the tensors alone from here on; no effect on what has ended."""
        if self._native is not None and not self._ended:
            self._native.withdraw()

    def is_completed(self) -> bool:
        """True once wait() would not block, also when the operation failed."""
        if not self._ended:
            if self._native is None or not self._native.done():
                return False
            self._end(None)
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call]

    def is_success(self) -> bool:
        """True when the operation has finished without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> Exception | None:
        """The error of an operation that failed; None while it is pending or when it succeeded."""
        return self._error if self.is_completed() else None

    def synchronize(self) -> None:
        """The same as wait()."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensors that the operation wrote, valid once it has finished."""
        return self._result

    def source_rank(self) -> int:
        """Group rank that a received message came from; -1 for a collective."""
        return -1 if self._native is None else self._native.peer

    _source_rank = source_rank

    def then(self, finish: Callable[[], None], result: Sequence[torch.Tensor]) -> Work:
        """A work with another result, which `finish` makes once this one has succeeded."""
        return Work(Several([self]), result, lambda _: finish(), self._completer, is_sync=self.is_sync)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of result(), completed when the operation has finished, or has its error."""
        if self._future is None:
            # An error must be one for C++ too (DDP): set_exception() makes one for Python only, then() one for both.
            devices: list[int | str | torch.device] | None = [self._result[0].device] if self._is_on_gpu else None
            ended: torch.futures.Future[None] = torch.futures.Future(devices=devices)
            self._future = ended.then(self._outcome)
            if self._completer is not None:  # else it has ended: callbacks run at once, in the program's order
                futures.label(self._future, self._label, self._ranks)
            if self._ended or self._completer is None:
                self.settle(ended)
            else:
                self._completer.complete(self, ended)
        return self._future

    def settle(self, ended: torch.futures.Future[None]) -> None:
        """Waits, and completes the future that says that this work has ended, one way or the other."""
        try:
            self.wait()
        except Exception as error:
            self._error = self._error or error  # the limit of this call: nobody will wait for longer
        ended.set_result(None)

    def fail(self, error: Exception, ended: torch.futures.Future[None]) -> None:
        """The same when the work cannot even be waited for."""
        self._error = self._error or error
        if not ended.done():
            ended.set_result(None)

    def _outcome(self, _: torch.futures.Future[None]) -> list[torch.Tensor]:
        if self._is_on_gpu and self._error is None:
            self.wait()
        if self._error is not None:
            raise self._error
        return self._result

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """In a completer's thread: a stream for what finish() and callbacks do, which has done it at the end."""
        if not self._is_on_gpu:
            yield
            return
        stream = torch.cuda.Stream(self._result[0].device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()  # the allocator gives memory away that it does not know this stream to use

    def _end(self, limit_s: float | None) -> None:
        """Waits for the core's operation and takes over its outcome. Several threads may."""
        native = self._native
        assert native is not None
        error: Exception | None = None
        try:
            native.wait(limit_s)
        except Exception as caught:
            if not native.done():
                raise  # the limit of this wait, not an outcome
            error = _outcome_of(native) if limit_s is not None and isinstance(caught, TimeoutError) else caught
        with self._lock:
            if self._ended:
                return
            if error is None and self._finish is not None:
                if self._is_on_gpu and torch.cuda.is_current_stream_capturing():
                    raise UnavailableError(
                        "the result of an operation on GPU memory cannot be copied to where it belongs while a CUDA "
                        "graph is captured; wait for the operation before the capture"
                    )
                try:
                    with torch.no_grad():
                        self._finish(native)
                except Exception as caught:
                    error = caught
                if self._is_on_gpu and error is None:
                    self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    self._event.record(torch.cuda.current_stream(self._result[0].device))
            self._finish = None
            self._error = error
            self._ended = True


def _outcome_of(native: Native) -> Exception | None:
    """The error of an operation that has ended, if any: where it ended when a wait's limit ran out, that has none."""
    try:
        native.wait(None)
    except Exception as error:
        return error
    return None


class Several:
    """Operations that are waited for as one."""

    peer = -1

    def __init__(self, works: Sequence[Work | _core.Work]) -> None:
        self._works = works

    def wait(self, timeout: float | None = None) -> None:
        """Waits for all of them, then raises the first error. TimeoutError when the timeout, for all, runs out."""
        deadline = Deadline(timeout or 0.0)
        error: Exception | None = None
        for work in self._works:
            left_s = deadline.wait_s()
            try:
                if isinstance(work, Work):
                    work.wait(NO_LIMIT if left_s is None else timedelta(seconds=left_s))
                else:
                    work.wait(left_s)
            except Exception as caught:
                if not _has_ended(work):  # the limit of this wait, or a signal's handler
                    raise caught from error
                error = error or caught
        if error is not None:
            raise error

    def withdraw(self) -> None:
        """Withdraws those that have not ended."""
        Works(self._works).withdraw()

    def done(self) -> bool:
        """True once wait() would not block."""
        return all(map(_has_ended, self._works))


def _has_ended(work: Work | _core.Work) -> bool:
    return work.is_completed() if isinstance(work, Work) else work.done()
