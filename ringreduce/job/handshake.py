"""One meeting of ranks of one host: one of them, the server, sends file descriptors to all others, the clients.

The server listens on an abstract Unix socket (SOCK_SEQPACKET: a message arrives whole or not at all). A client sends
one fixed-size hello, authenticated with the meeting's secret. When every expected client has connected, the server
sends each of them a reply with the descriptors (SCM_RIGHTS, close-on-exec). Both ends check that the other has the same
user. The server turns away a stranger, who cannot authenticate, and the meeting goes on. A member that disagrees,
leaves or times out ends the meeting for everyone with the same error. Nothing is unpickled, no message exceeds a few
kilobytes, every wait has the meeting's deadline.

This file holds the messages, the client's side, and what errors of the operating system say on both sides;
rendezvous_server.py holds the server's.
"""

from __future__ import annotations

import array
import builtins
import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringreduce.errors import (
    Error,
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
    UnavailableError,
)
from ringreduce.job.deadline import Deadline

MAGIC = b"ringrdc1"
HELLO = struct.Struct("<8sIIQ16s32s")
"""magic, rank, size, epoch, nonce, HMAC-SHA256 of what is before it."""
REPLY = struct.Struct("<8sII32s")
"""magic, status (index into STATUSES), number of descriptors, HMAC of the hello; after it the error's text in UTF-8."""
STATUSES: tuple[type[Error], ...] = (
    Error,  # 0 is success; never raised
    HorovodInternalError,
    MismatchError,
    TimeoutError,
    PeerLostError,
    UnavailableError,
    InvalidArgumentError,
    ShutdownError,
)
ALL_SENT = b"!"
"""The server's last message to each client: all have their descriptors. Before it, a failure of one is one of all."""
TIMED_OUT = b"?"
"""Sent by a client whose deadline has run out, to learn which ranks are missing; it ends the meeting for all."""
FDS_PER_MESSAGE = 250  # the kernel's SCM_MAX_FD is 253
TEXT_NBYTES = 2048
LAST_REPLY_S = 1.0  # how long a client waits for the reply to TIMED_OUT
ON_SEVERAL_HOSTS = "if the ranks are on several hosts, they need RINGREDUCE_ADDRESS and RINGREDUCE_SECRET_FILE"
"""For ranks of whose hosts nobody has said anything, which therefore look for one another on their own."""


@dataclass(frozen=True)
class Meeting:
    """What server and clients know beforehand."""

    address: bytes
    """Name in the abstract namespace, without its leading zero byte."""
    secret: bytes = field(repr=False)
    clients: frozenset[int]
    server: int
    size: int
    """How many ranks the job has, as each of them must say."""
    epoch: int
    """Which init() this is for, as each of them must say."""

    def where(self) -> str:
        """The address as `ss -x` shows it."""
        return "@" + self.address.decode(errors="replace")

    def me(self, rank: int) -> str:
        """How messages of a rank begin."""
        return f"[rendezvous] rank {rank}/{self.size}"


def same_user(connection: socket.socket) -> int | None:
    """The pid at the other end if it runs as this user (0 if it is in another PID namespace), else None."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid) if uid == os.geteuid() else None


def hello_mac(secret: bytes, body: bytes) -> bytes:
    """What proves that the sender of a hello knows the secret."""
    return _mac(secret, b"hello" + body)


def reply_mac(secret: bytes, hello: bytes) -> bytes:
    """What proves to the sender of this hello that the replier knows the secret."""
    return _mac(secret, b"welcome" + hello)


def _mac(secret: bytes, message: bytes) -> bytes:
    import hmac  # loads OpenSSL, 4 ms: not part of `import ringreduce`

    return hmac.digest(secret, message, "sha256")


def same_mac(one: bytes, other: bytes) -> bool:
    """Compares in a time that does not depend on the bytes."""
    import hmac

    return hmac.compare_digest(one, other)


def send_reply(
    connection: socket.socket, meeting: Meeting, hello: bytes, fds: Sequence[int], deadline: Deadline
) -> None:
    """Sends success and the descriptors, in as many messages as the kernel's limit asks for.

    Raises OSError when the client is gone.
    """
    head = REPLY.pack(MAGIC, 0, len(fds), reply_mac(meeting.secret, hello))
    for start in range(0, len(fds), FDS_PER_MESSAGE):
        part = array.array("i", fds[start : start + FDS_PER_MESSAGE])
        while True:
            try:
                connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)])
                break
            except OSError as error:  # too many descriptors in flight: the clients are receiving theirs right now
                if error.errno != errno.ETOOMANYREFS or deadline.expired():
                    raise
                time.sleep(1e-3)


def send_error(connection: socket.socket, error: Error) -> None:
    """Sends a client the reason why the meeting fails; a client that is gone already gets none."""
    status = next((i for i, kind in enumerate(STATUSES) if i and type(error) is kind), 1)
    text = str(error).encode()[:TEXT_NBYTES]
    try:
        connection.send(REPLY.pack(MAGIC, status, 0, bytes(32)) + text)
    except OSError:
        return


def told_error(kind: str, text: str) -> Error:
    """The error that another rank has raised and told: one of STATUSES, by its name."""
    return {known.__name__: known for known in STATUSES}.get(kind, HorovodInternalError)(text)


@contextlib.contextmanager
def errno_text(me: str, where: str) -> Iterator[None]:
    """Gives a bare OSError its rank and address, and says what to do where no file descriptor is left."""
    try:
        yield
    except Error:
        raise  # ringreduce.TimeoutError is an OSError too
    except OSError as error:
        text = f"{me} at {where}: {error}"
        if error.errno == errno.EMFILE:
            text += ": a rank needs a file descriptor for each other one: raise the limit (ulimit -n)"
        elif error.errno == errno.ENFILE:
            text += ": the host's programs have too many files open: raise the limit (sysctl fs.file-max)"
        lacks = error.errno in (errno.EMFILE, errno.ENFILE)
        raise (UnavailableError if lacks else HorovodInternalError)(text) from error


def receive_fds(meeting: Meeting, rank: int, deadline: Deadline) -> list[int]:
    """The client's side: returns the server's descriptors, which the caller owns, close-on-exec.

    Raises:
        TimeoutError: the server, or another client, has not connected in time.
        PeerLostError: the server went away. MismatchError and others: as the server says.
    """
    me = meeting.me(rank)
    body = HELLO.pack(MAGIC, rank, meeting.size, meeting.epoch, os.urandom(16), bytes(32))[:-32]
    hello = body + hello_mac(meeting.secret, body)
    with connect(meeting, me, deadline) as connection:
        try:
            with contextlib.suppress(BrokenPipeError):  # a server that has failed may have sent its reason
                connection.send(hello)
            return _receive(connection, meeting, me, hello, deadline)
        except (ConnectionError, EOFError):
            raise PeerLostError(
                f"{me}: lost rank {meeting.server}: it gathers the ranks at {meeting.where()}, and went away before "
                "all had come; its own error says why"
            ) from None


def connect(meeting: Meeting, me: str, deadline: Deadline) -> socket.socket:
    """A connection to the server, as soon as it listens; retried from 50 us up to every 5 ms.

    Raises TimeoutError when the server does not listen in time, HorovodInternalError when it is another user's.
    """
    pause_s = 50e-6
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.setblocking(False)  # where its queue is full, connect() would wait without end
            connection.connect(b"\0" + meeting.address)
            connection.setblocking(True)
            if same_user(connection) is None:
                raise HorovodInternalError(f"{me}: {meeting.where()} belongs to another user; not connecting")
            return connection
        except (ConnectionRefusedError, BlockingIOError):  # it does not listen yet; its queue is full for a moment
            connection.close()
        except BaseException:
            connection.close()
            raise
        if deadline.expired():
            raise TimeoutError(
                f"{me}: rank {meeting.server} did not come to {meeting.where()} within {deadline.timeout_s:g} s. Is it "
                f"running on this host, and is this init() number {meeting.epoch} there too? And {ON_SEVERAL_HOSTS}"
            )
        deadline.check()
        time.sleep(min(pause_s, deadline.remaining_s()))
        pause_s = min(2 * pause_s, 5e-3)


def _receive(connection: socket.socket, meeting: Meeting, me: str, hello: bytes, deadline: Deadline) -> list[int]:
    """Receives descriptors until the server says that every client has its own."""
    fds: list[int] = []
    expected = -1
    try:
        while True:
            message, received, flags = _next_message(connection, meeting, me, deadline)
            fds += received
            if message == ALL_SENT and len(fds) == expected:
                return fds
            expected = _expected_fds(message, meeting, me, hello)
            if flags & socket.MSG_CTRUNC:
                raise UnavailableError(f"{me}: out of file descriptors; raise the limit (ulimit -n)")
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _next_message(
    connection: socket.socket, meeting: Meeting, me: str, deadline: Deadline
) -> tuple[bytes, list[int], int]:
    fds = array.array("i")
    timed_out = was_reset = False
    while True:
        connection.settimeout(LAST_REPLY_S if timed_out else deadline.turn_s())
        try:
            # Not socket.recv_fds(), which drops its flags (seen in CPython 3.11): the descriptors would outlive exec.
            message, controls, flags, _ = connection.recvmsg(
                REPLY.size + TEXT_NBYTES, socket.CMSG_LEN(FDS_PER_MESSAGE * fds.itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            # The server closed without having read the hello: the kernel says so before it gives what the server sent.
            if was_reset:
                raise
            was_reset = True
            continue
        except builtins.TimeoutError:
            if timed_out:
                break
            deadline.check()
            timed_out = deadline.expired()
            if timed_out:
                connection.send(TIMED_OUT)
            continue
        for level, kind, data in controls:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not message:
            raise EOFError
        return message, list(fds), flags
    raise TimeoutError(
        f"{me}: no answer from rank {meeting.server} at {meeting.where()} within {deadline.timeout_s:g} s; "
        "it is stopped or very slow"
    )


def _expected_fds(message: bytes, meeting: Meeting, me: str, hello: bytes) -> int:
    if len(message) < REPLY.size or message[: len(MAGIC)] != MAGIC:
        raise HorovodInternalError(f"{me}: what listens at {meeting.where()} is not this version of ringreduce")
    _, status, expected, mac = REPLY.unpack_from(message)
    if status:
        kind = STATUSES[status] if status < len(STATUSES) else HorovodInternalError
        raise kind(f"{me}: told by rank {meeting.server}: " + message[REPLY.size :].decode(errors="replace"))
    if not same_mac(mac, reply_mac(meeting.secret, hello)):
        raise MismatchError(f"{me}: what listens at {meeting.where()} does not know this job's secret")
    return int(expected)
