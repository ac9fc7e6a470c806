"""The host's side of a handshake: receives the guests, and answers all of them at once.

`with Reception(...) as reception: pids = reception.gather(); reception.answer(...)`. Leaving the block by an exception
tells every guest that has come what happened, so that all ranks fail with the same cause and at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from ringreduce.deadline import Deadline
from ringreduce.errors import Error, HorovodInternalError, MismatchError, PeerLostError, TimeoutError
from ringreduce.handshake import (
    GIVE_UP,
    GO,
    HELLO,
    MAGIC,
    Meeting,
    hello_mac,
    same_mac,
    same_user,
    send_error,
    send_reply,
)

SPARE_CONNECTIONS = 16  # strangers that may be connected at once without keeping a guest out
BUSY_ADDRESS_S = 2.0  # how long a predecessor at the same address may take to go away


class Guest:
    """A rank that has come and said who it is."""

    __slots__ = ("connection", "hello", "pid")

    def __init__(self, connection: socket.socket, hello: bytes, pid: int) -> None:
        self.connection = connection
        self.hello = hello
        self.pid = pid


class Reception:
    """Listens from construction on. Raises MismatchError when another process holds the address."""

    def __init__(self, meeting: Meeting, deadline: Deadline) -> None:
        self._meeting = meeting
        self._deadline = deadline
        self._me = f"[rendezvous] rank {meeting.host}/{meeting.size}"
        self._guests: dict[int, Guest] = {}
        self._pending: dict[socket.socket, int] = {}
        self._turned_away: list[str] = []
        self._selector = selectors.PollSelector()
        self._listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            self._bind()
            self._listener.listen(meeting.size + SPARE_CONNECTIONS)
        except BaseException:
            self._listener.close()
            raise
        self._selector.register(self._listener, selectors.EVENT_READ)

    def __enter__(self) -> Reception:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            told = error if isinstance(error, Error) else HorovodInternalError(f"{self._me}: {error!r}")
            with contextlib.suppress(OSError):  # no descriptor is left: some will not be told
                for _ in range(self._meeting.size + SPARE_CONNECTIONS):  # who connected while this rank was busy
                    if not self._accept():
                        break
            for connection in (*(guest.connection for guest in self._guests.values()), *self._pending):
                send_error(connection, told)
        for guest in self._guests.values():
            guest.connection.close()
        for connection in self._pending:
            connection.close()
        self._listener.close()
        self._selector.close()

    def gather(self) -> dict[int, int]:
        """Waits until every guest has come. Returns each one's pid (0: in another PID namespace).

        Raises:
            TimeoutError: names the ranks that have not come.
            MismatchError: two processes claim one rank, or they disagree about the size or the number of init() calls.
            PeerLostError: a guest left before the others had come.
        """
        while len(self._guests) < len(self._meeting.guests):
            events = self._selector.select(self._deadline.turn_s())
            if not events:
                self._deadline.look()
                if self._deadline.expired():
                    raise self._late()
            for key, _ in events:
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif connection in self._pending:
                    self._read_hello(connection)
                else:
                    self._read_farewell(connection)
        return {rank: guest.pid for rank, guest in self._guests.items()}

    def answer(self, fds_for: Callable[[int], Sequence[int]]) -> None:
        """Sends every guest fds_for(rank), which stay the caller's. All go or none: PeerLostError if one has left."""
        for rank, guest in sorted(self._guests.items()):
            guest.connection.settimeout(self._deadline.wait_s())
            try:
                send_reply(guest.connection, self._meeting, guest.hello, fds_for(rank), self._deadline)
            except (ConnectionError, BrokenPipeError):
                raise self._left(rank) from None
        for guest in self._guests.values():
            with contextlib.suppress(OSError):  # who dies from here on is missed by the others' pidfds
                guest.connection.send(GO)

    def _bind(self) -> None:
        patience = Deadline(BUSY_ADDRESS_S)
        while True:
            try:
                return self._listener.bind(b"\0" + self._meeting.address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if patience.expired() or self._deadline.expired():
                raise MismatchError(
                    f"{self._me}: another process is rank {self._meeting.host} at {self._meeting.where()} already"
                )
            time.sleep(1e-2)

    def _accept(self) -> bool:
        """Takes one connection to the listener. Returns whether there was one."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return False
        connection.setblocking(False)
        pid = same_user(connection)
        if pid is None or len(self._pending) > self._meeting.size + SPARE_CONNECTIONS:
            self._turned_away.append("another user's process" if pid is None else "one connection too many")
            connection.close()
        else:
            self._pending[connection] = pid
            self._selector.register(connection, selectors.EVENT_READ)
        return True

    def _read_hello(self, connection: socket.socket) -> None:
        """Makes a guest of a pending connection, or turns it away if it is a stranger's."""
        pid = self._pending.pop(connection)
        try:
            hello = connection.recv(HELLO.size + 1)
        except (BlockingIOError, ConnectionError):
            hello = b""
        fault = None
        if len(hello) != HELLO.size or not hello.startswith(MAGIC):
            fault = "sent something else than this version's hello"
        elif not same_mac(hello[-32:], hello_mac(self._meeting.secret, hello[:-32])):
            fault = "does not know this job's secret (RINGREDUCE_RENDEZVOUS of another job?)"
        if fault is not None:
            self._turned_away.append(f"pid {pid} {fault}")
            send_error(connection, MismatchError(f"{self._me}: turned away: pid {pid} {fault}"))
            self._selector.unregister(connection)
            connection.close()
            return
        _, rank, size, epoch, _, _ = HELLO.unpack(hello)
        disagreement = self._disagreement(rank, size, epoch, pid)
        if disagreement is not None:
            self._pending[connection] = pid  # so that it is told too
            raise MismatchError(f"{self._me}: {disagreement}")
        self._guests[rank] = Guest(connection, hello, pid)

    def _disagreement(self, rank: int, size: int, epoch: int, pid: int) -> str | None:
        meeting = self._meeting
        if size != meeting.size:
            return f"rank {rank} (pid {pid}) says the job has {size} ranks, rank {meeting.host} says {meeting.size}"
        if epoch != meeting.epoch:
            return (
                f"rank {rank} (pid {pid}) is at its init() number {epoch}, rank {meeting.host} at number "
                f"{meeting.epoch}: all ranks must call init() and shutdown() equally often"
            )
        if rank == meeting.host or rank in self._guests:
            others = "this process" if rank == meeting.host else f"pid {self._guests[rank].pid}"
            return f"two processes say they are rank {rank}: {others} and pid {pid}"
        if rank not in meeting.guests:
            return f"rank {rank} (pid {pid}) is not one of ranks {_listed(meeting.guests | {meeting.host})}"
        return None

    def _read_farewell(self, connection: socket.socket) -> None:
        """A guest says nothing after its hello, unless it leaves or gives up."""
        rank = next(rank for rank, guest in self._guests.items() if guest.connection is connection)
        try:
            message = connection.recv(16)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        raise self._late() if message == GIVE_UP else self._left(rank)

    def _missing(self) -> str:
        missing = self._meeting.guests - self._guests.keys()
        return f"rank{'s' if len(missing) > 1 else ''} {_listed(missing)}"

    def _late(self) -> TimeoutError:
        strangers = f" Turned away: {'; '.join(self._turned_away[-3:])}." if self._turned_away else ""
        return TimeoutError(
            f"{self._me}: {self._missing()} did not come to {self._meeting.where()} within "
            f"{self._deadline.timeout_s:g} s (init() number {self._meeting.epoch}; all ranks must be on this host; "
            "those that no common parent has started need init(job=...))."
            f"{strangers}"
        )

    def _left(self, rank: int) -> PeerLostError:
        waiting = f" while {self._missing()} had not come" if self._meeting.guests - self._guests.keys() else ""
        return PeerLostError(f"{self._me}: lost rank {rank} (pid {self._guests[rank].pid}) at the rendezvous{waiting}")


def _listed(ranks: frozenset[int] | set[int]) -> str:
    """At most 16 ranks in words."""
    ordered = sorted(ranks)
    return ", ".join(map(str, ordered[:16])) + (f" and {len(ordered) - 16} more" if len(ordered) > 16 else "")
