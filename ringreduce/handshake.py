"""One meeting of ranks of one host: one of them, the host, hands file descriptors to all others, the guests.

The host listens on an abstract Unix socket (SOCK_SEQPACKET: a message arrives whole or not at all). A guest sends one
fixed-size hello, authenticated with the meeting's secret; when every expected guest is there, each gets a reply with
the descriptors (SCM_RIGHTS, close-on-exec). Both ends check that the other has the same user. A stranger, who cannot
authenticate, is turned away and the meeting goes on; a member who disagrees, leaves or gives up ends it for everyone
with the same error. Nothing is unpickled, no message exceeds a few kilobytes, every wait has the meeting's deadline.

This file holds the messages and the guest's side; reception.py is the host's.
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
from collections.abc import Sequence
from dataclasses import dataclass

from ringreduce.deadline import Deadline
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
GO = b"!"
"""The host's last word to each guest: all have their descriptors. Until then a failure of one is a failure of all."""
GIVE_UP = b"?"
"""A guest whose deadline has run out asks who is missing; that ends the meeting for all."""
FDS_PER_MESSAGE = 250  # the kernel's SCM_MAX_FD is 253
TEXT_NBYTES = 2048
LAST_WORD_S = 1.0  # how long a guest that gives up waits for the answer


@dataclass(frozen=True)
class Meeting:
    """What those who meet agree on beforehand."""

    address: bytes
    """Name in the abstract namespace, without its leading zero byte."""
    secret: bytes
    guests: frozenset[int]
    host: int
    size: int
    """How many ranks the job has, as each of them must say."""
    epoch: int
    """Which init() this is for, as each of them must say."""

    def where(self) -> str:
        """The address as `ss -x` shows it."""
        return "@" + self.address.decode(errors="replace")


def same_user(connection: socket.socket) -> int | None:
    """The pid at the other end if it runs as this user (0 if it is in another PID namespace), else None."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid) if uid == os.geteuid() else None


def hello_mac(secret: bytes, body: bytes) -> bytes:
    """What proves that the sender of a hello knows the secret."""
    return _mac(secret, b"hello" + body)


def welcome_mac(secret: bytes, hello: bytes) -> bytes:
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

    Raises OSError when the guest is gone.
    """
    head = REPLY.pack(MAGIC, 0, len(fds), welcome_mac(meeting.secret, hello))
    for start in range(0, len(fds), FDS_PER_MESSAGE):
        part = array.array("i", fds[start : start + FDS_PER_MESSAGE])
        while True:
            try:
                connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, part)])
                break
            except OSError as error:  # too many descriptors in flight: the guests are taking theirs out right now
                if error.errno != errno.ETOOMANYREFS or deadline.expired():
                    raise
                time.sleep(1e-3)


def send_error(connection: socket.socket, error: Error) -> None:
    """Tells a guest why there will be no meeting; a guest that is gone already need not know."""
    status = next((i for i, kind in enumerate(STATUSES) if i and type(error) is kind), 1)
    text = str(error).encode()[:TEXT_NBYTES]
    try:
        connection.send(REPLY.pack(MAGIC, status, 0, bytes(32)) + text)
    except OSError:
        return


def attend(meeting: Meeting, rank: int, deadline: Deadline) -> list[int]:
    """The guest's side: returns the host's descriptors, which the caller owns, close-on-exec.

    Raises:
        TimeoutError: the host, or another guest, has not come in time.
        PeerLostError: the host went away. MismatchError and others: as the host says.
    """
    me = f"[rendezvous] rank {rank}/{meeting.size}"
    body = HELLO.pack(MAGIC, rank, meeting.size, meeting.epoch, os.urandom(16), bytes(32))[:-32]
    hello = body + hello_mac(meeting.secret, body)
    with connect(meeting, me, deadline) as connection:
        try:
            with contextlib.suppress(BrokenPipeError):  # a host that has failed may have left its reason
                connection.send(hello)
            return _receive(connection, meeting, me, hello, deadline)
        except (ConnectionError, EOFError):
            raise PeerLostError(
                f"{me}: rank {meeting.host}, which gathers the ranks at {meeting.where()}, went away before all had "
                "come; its own error says why"
            ) from None


def connect(meeting: Meeting, me: str, deadline: Deadline) -> socket.socket:
    """A connection to the host, as soon as it listens; retried from 50 us up to every 5 ms.

    Raises TimeoutError when the host has not come in time, HorovodInternalError when it is another user's.
    """
    pause_s = 50e-6
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.connect(b"\0" + meeting.address)
            if same_user(connection) is None:
                raise HorovodInternalError(f"{me}: {meeting.where()} belongs to another user; not connecting")
            return connection
        except (ConnectionRefusedError, BlockingIOError):  # not there yet; its queue is full for a moment
            connection.close()
        except BaseException:
            connection.close()
            raise
        if deadline.expired():
            raise TimeoutError(
                f"{me}: rank {meeting.host} did not come to {meeting.where()} within {deadline.timeout_s:g} s. Is it "
                f"running on this host, and is this init() number {meeting.epoch} there too?"
            )
        deadline.look()
        time.sleep(min(pause_s, deadline.remaining_s()))
        pause_s = min(2 * pause_s, 5e-3)


def _receive(connection: socket.socket, meeting: Meeting, me: str, hello: bytes, deadline: Deadline) -> list[int]:
    """Descriptors until the host says that every guest has got its own."""
    fds: list[int] = []
    expected = -1
    try:
        while True:
            message, received, flags = _next_message(connection, meeting, me, deadline)
            fds += received
            if message == GO and len(fds) == expected:
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
    gave_up = was_reset = False
    while True:
        connection.settimeout(LAST_WORD_S if gave_up else deadline.turn_s())
        try:
            # Not socket.recv_fds(), which drops its flags (seen in CPython 3.11): the descriptors would outlive exec.
            message, controls, flags, _ = connection.recvmsg(
                REPLY.size + TEXT_NBYTES, socket.CMSG_LEN(FDS_PER_MESSAGE * fds.itemsize), socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            # A host that closes without having read the hello: the kernel says this before it gives what the host sent.
            if was_reset:
                raise
            was_reset = True
            continue
        except builtins.TimeoutError:
            if gave_up:
                break
            deadline.look()
            gave_up = deadline.expired()
            if gave_up:
                connection.send(GIVE_UP)
            continue
        for level, kind, data in controls:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
        if not message:
            raise EOFError
        return message, list(fds), flags
    raise TimeoutError(
        f"{me}: no answer from rank {meeting.host} at {meeting.where()} within {deadline.timeout_s:g} s; "
        "it is stopped or very slow"
    )


def _expected_fds(message: bytes, meeting: Meeting, me: str, hello: bytes) -> int:
    if len(message) < REPLY.size or message[: len(MAGIC)] != MAGIC:
        raise HorovodInternalError(f"{me}: what listens at {meeting.where()} is not this version of ringreduce")
    _, status, expected, mac = REPLY.unpack_from(message)
    if status:
        kind = STATUSES[status] if status < len(STATUSES) else HorovodInternalError
        raise kind(f"{me}: told by rank {meeting.host}: " + message[REPLY.size :].decode(errors="replace"))
    if not same_mac(mac, welcome_mac(meeting.secret, hello)):
        raise MismatchError(f"{me}: what listens at {meeting.where()} does not know this job's secret")
    return int(expected)
