"""The server's side of a handshake: it waits for all clients, and replies to all of them at once.

`with RendezvousServer(...) as server: pids = server.accept_all(); server.reply_all(...)`. Leaving the block by an
exception sends the error to every connected client, so that all ranks fail with the same cause and at the same time.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from ringreduce.errors import Error, HorovodInternalError, MismatchError, PeerLostError, TimeoutError
from ringreduce.job.deadline import Deadline
from ringreduce.job.handshake import (
    ALL_SENT,
    HELLO,
    MAGIC,
    ON_SEVERAL_HOSTS,
    TIMED_OUT,
    Meeting,
    hello_mac,
    same_mac,
    same_user,
    send_error,
    send_reply,
)

SPARE_CONNECTIONS = 16  # strangers that may be connected at once without keeping a client out
BUSY_ADDRESS_TIMEOUT_S = 2.0  # how long a predecessor at the same address may take to go away


class Client:
    """A rank that has connected and sent a valid hello."""

    __slots__ = ("connection", "hello", "pid")

    def __init__(self, connection: socket.socket, hello: bytes, pid: int) -> None:
        self.connection = connection
        self.hello = hello
        self.pid = pid


class RendezvousServer:
    """Listens from construction on. Raises MismatchError when another process holds the address."""

    def __init__(self, meeting: Meeting, deadline: Deadline) -> None:
        self._meeting = meeting
        self._deadline = deadline
        self._me = meeting.me(meeting.server)
        self._clients: dict[int, Client] = {}
        self._pending: dict[socket.socket, int] = {}
        self._turned_away: deque[str] = deque(maxlen=3)
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

    def __enter__(self) -> RendezvousServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            reason = error if isinstance(error, Error) else HorovodInternalError(f"{self._me}: {error!r}")
            with contextlib.suppress(OSError):  # no descriptor is left: some clients get no error
                for _ in range(self._meeting.size + SPARE_CONNECTIONS):  # those that connected while this rank was busy
                    if not self._accept():
                        break
            for connection in (*(client.connection for client in self._clients.values()), *self._pending):
                send_error(connection, reason)
        for client in self._clients.values():
            client.connection.close()
        for connection in self._pending:
            connection.close()
        self._listener.close()
        self._selector.close()

    def accept_all(self) -> dict[int, int]:
        """Waits until every client has connected. Returns each one's pid (0: in another PID namespace).

        Raises:
            TimeoutError: names the ranks that have not connected.
            MismatchError: two processes claim one rank, or they disagree about the size or the number of init() calls.
            PeerLostError: a client left before the others had connected.
        """
        while True:
            for key, _ in self._selector.select(self._deadline.turn_s()):
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listener:
                    self._accept()
                elif connection in self._pending:
                    self._read_hello(connection)
                else:
                    self._read_close(connection)
            if len(self._clients) == len(self._meeting.clients):
                break
            # After each turn, also one that has brought news: strangers may come without end.
            self._deadline.check()
            if self._deadline.expired():
                raise self._timeout_error()
        return {rank: client.pid for rank, client in self._clients.items()}

    def reply_all(self, fds_for: Callable[[int], Sequence[int]]) -> None:
        """Sends fds_for(rank) to all clients, or to none (PeerLostError) if one has left. They stay the caller's."""
        for rank, client in sorted(self._clients.items()):
            client.connection.settimeout(self._deadline.wait_s())
            try:
                send_reply(client.connection, self._meeting, client.hello, fds_for(rank), self._deadline)
            except (ConnectionError, BrokenPipeError):
                raise self._peer_lost_error(rank) from None
        for client in self._clients.values():
            with contextlib.suppress(OSError):  # the others notice by its pidfd a client that dies from here on
                client.connection.send(ALL_SENT)

    def _bind(self) -> None:
        busy = Deadline(BUSY_ADDRESS_TIMEOUT_S)
        while True:
            try:
                return self._listener.bind(b"\0" + self._meeting.address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if busy.expired() or self._deadline.expired():
                raise MismatchError(
                    f"{self._me}: another process is rank {self._meeting.server} at {self._meeting.where()} already"
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
        """Makes a client of a pending connection, or turns it away if it is a stranger's."""
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
            self._pending[connection] = pid  # so that it gets the error too
            raise MismatchError(f"{self._me}: {disagreement}")
        self._clients[rank] = Client(connection, hello, pid)

    def _disagreement(self, rank: int, size: int, epoch: int, pid: int) -> str | None:
        meeting = self._meeting
        if size != meeting.size:
            return f"rank {rank} (pid {pid}) says the job has {size} ranks, rank {meeting.server} says {meeting.size}"
        if epoch != meeting.epoch:
            return (
                f"rank {rank} (pid {pid}) is at its init() number {epoch}, rank {meeting.server} at number "
                f"{meeting.epoch}: all ranks must call init() and shutdown() equally often"
            )
        if rank == meeting.server or rank in self._clients:
            others = "this process" if rank == meeting.server else f"pid {self._clients[rank].pid}"
            return f"two processes say they are rank {rank}: {others} and pid {pid}"
        if rank not in meeting.clients:
            return f"rank {rank} (pid {pid}) is not one of ranks {_listed(meeting.clients | {meeting.server})}"
        return None

    def _read_close(self, connection: socket.socket) -> None:
        """A client sends nothing after its hello, unless it leaves or its deadline has run out."""
        rank = next(rank for rank, client in self._clients.items() if client.connection is connection)
        try:
            message = connection.recv(16)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        raise self._timeout_error() if message == TIMED_OUT else self._peer_lost_error(rank)

    def _missing(self) -> str:
        missing = self._meeting.clients - self._clients.keys()
        return f"rank{'s' if len(missing) > 1 else ''} {_listed(missing)}"

    def _timeout_error(self) -> TimeoutError:
        strangers = f" Turned away: {'; '.join(self._turned_away)}." if self._turned_away else ""
        return TimeoutError(
            f"{self._me}: {self._missing()} did not come to {self._meeting.where()} within "
            f"{self._deadline.timeout_s:g} s (init() number {self._meeting.epoch}; {ON_SEVERAL_HOSTS}; "
            "those of this host that no common parent has started need init(job=...))."
            f"{strangers}"
        )

    def _peer_lost_error(self, rank: int) -> PeerLostError:
        waiting = f" while {self._missing()} had not come" if self._meeting.clients - self._clients.keys() else ""
        return PeerLostError(f"{self._me}: lost rank {rank} (pid {self._clients[rank].pid}) at the rendezvous{waiting}")


def _listed(ranks: frozenset[int] | set[int]) -> str:
    """At most 16 ranks in words."""
    ordered = sorted(ranks)
    return ", ".join(map(str, ordered[:16])) + (f" and {len(ordered) - 16} more" if len(ordered) > 16 else "")
