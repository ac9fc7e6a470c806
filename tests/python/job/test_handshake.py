"""The handshake itself, server and clients as threads: strangers, lies, limits, leaks."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S
from together import together

from ringreduce.errors import MismatchError, PeerLostError, TimeoutError
from ringreduce.job.deadline import Deadline
from ringreduce.job.handshake import FDS_PER_MESSAGE, HELLO, MAGIC, Meeting, hello_mac, receive_fds
from ringreduce.job.rendezvous import new_address
from ringreduce.job.rendezvous_server import RendezvousServer

ON_SEVERAL_HOSTS = "if the ranks are on several hosts, they need RINGREDUCE_ADDRESS and RINGREDUCE_SECRET_FILE"


def meeting(size: int = 2) -> Meeting:
    return Meeting(*new_address(), clients=frozenset(range(1, size)), server=0, size=size, epoch=3)


def server(
    where: Meeting, timeout_s: float = HANG_S, fds: Callable[[int], list[int]] = lambda rank: [0]
) -> dict[int, int]:
    with RendezvousServer(where, Deadline(timeout_s)) as listening:
        pids = listening.accept_all()
        listening.reply_all(fds)
        return pids


def client(where: Meeting, rank: int = 1, timeout_s: float = HANG_S) -> int:
    """The number of descriptors that came."""
    fds = receive_fds(where, rank, Deadline(timeout_s))
    for fd in fds:
        os.close(fd)
    return len(fds)


def test_a_server_that_takes_nobody() -> None:
    """It listens, and is stopped, and its queue is full: whoever comes waits for as long as it is to."""
    where = meeting()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as stack:
        listener.bind(b"\0" + where.address)
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                stranger = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                stranger.setblocking(False)
                stranger.connect(b"\0" + where.address)
        with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
            client(where, timeout_s=0.1)


def connected(where: Meeting) -> socket.socket:
    """A raw connection to a server that is about to listen."""
    deadline = time.monotonic() + HANG_S
    while True:
        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            stranger.connect(b"\0" + where.address)
            stranger.settimeout(HANG_S)
            return stranger
        except ConnectionRefusedError:
            stranger.close()
            assert time.monotonic() < deadline


def hello(where: Meeting, rank: int = 1) -> bytes:
    body = HELLO.pack(MAGIC, rank, where.size, where.epoch, bytes(16), bytes(32))[:-32]
    return body + hello_mac(where.secret, body)


def test_it_works_at_all() -> None:
    where = meeting(3)
    pids, first, second = together(lambda: server(where), lambda: client(where, 1), lambda: client(where, 2))
    assert pids == {1: os.getpid(), 2: os.getpid()}
    assert (first, second) == (1, 1)


def test_a_wrong_secret_is_turned_away_and_the_meeting_goes_on() -> None:
    where = meeting()
    refused = threading.Event()

    def stranger() -> int:
        try:
            return client(replace(where, secret=b"guessed"))
        finally:
            refused.set()

    def member() -> int:
        assert refused.wait(HANG_S)
        return client(where)

    pids, error, fds = together(lambda: server(where), stranger, member)
    assert isinstance(error, MismatchError)
    assert "does not know this job's secret" in str(error)
    assert (pids, fds) == ({1: os.getpid()}, 1)


def test_a_turned_away_stranger_is_mentioned_when_time_runs_out() -> None:
    where = meeting()
    late, _ = together(lambda: server(where, 0.5), lambda: client(replace(where, secret=b"guessed")))
    assert isinstance(late, TimeoutError)
    assert f"Turned away: pid {os.getpid()} does not know this job's secret" in str(late)


def has_died() -> None:
    raise PeerLostError("another rank has died")


@pytest.mark.parametrize(
    ("deadline", "kind", "words"),
    [
        (Deadline(1e-9), TimeoutError, "rank 1 did not come"),
        (Deadline(HANG_S, has_died), PeerLostError, "another rank has died"),
    ],
    ids=["out of time", "a death"],
)
def test_strangers_that_come_without_end_keep_no_server_waiting(
    deadline: Deadline, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it has taken one, the next is there."""
    where = meeting()
    come = itertools.count()

    def calls() -> None:
        assert next(come) < 100, "the server goes on"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(b"\0" + where.address)

    with RendezvousServer(where, deadline) as listening:
        accept = listening._accept
        monkeypatch.setattr(listening, "_accept", lambda: (accept(), calls()))
        calls()
        with pytest.raises(kind, match=words):
            listening.accept_all()


def test_a_server_without_the_secret_is_not_believed() -> None:
    where = meeting()

    def impostor() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(b"\0" + where.address)
            listener.listen()
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                reply = MAGIC + bytes(4) + b"\1\0\0\0" + bytes(32)
                socket.send_fds(connection, [reply], [0])
                connection.send(b"!")
                connection.recv(4096)

    before = os.listdir("/proc/self/fd")
    _, error = together(impostor, lambda: client(where))
    assert isinstance(error, MismatchError)
    assert "does not know this job's secret" in str(error)
    assert os.listdir("/proc/self/fd") == before


LIES = [
    ({"epoch": 2}, 1, "init() number 2, rank 0 at number 3"),
    ({"size": 4}, 1, "says the job has 4 ranks, rank 0 says 3"),
    ({}, 0, "two processes say they are rank 0"),
    ({}, 7, "rank 7 (pid"),
]


@pytest.mark.parametrize(("lie", "rank", "words"), LIES, ids=[row[2] for row in LIES])
def test_a_member_who_disagrees_ends_it_for_everyone(lie: dict[str, Any], rank: int, words: str) -> None:
    where = meeting(3)
    with RendezvousServer(where, Deadline(20)) as listening:
        bystander = connected(where)
        bystander.send(hello(where, 2))
        liar = threading.Thread(target=lambda: answers.extend(together(lambda: client(replace(where, **lie), rank))))
        answers: list[Any] = []
        liar.start()
        with pytest.raises(MismatchError) as caught:
            listening.accept_all()
        listening.__exit__(MismatchError, caught.value, None)
        liar.join(20)
    assert words in str(caught.value)
    assert isinstance(answers[0], MismatchError)
    assert words in str(answers[0])
    assert words.encode() in bystander.recv(4096)
    bystander.close()


@pytest.mark.parametrize("garbage", [b"", b"x", b"GET / HTTP/1.1\r\n\r\n", bytes(HELLO.size), b"y" * 5000, MAGIC * 9])
def test_garbage_disturbs_nobody(garbage: bytes) -> None:
    where = meeting()
    open_before = len(os.listdir("/proc/self/fd"))

    def strangers() -> None:
        for _ in range(100):
            with connected(where) as stranger:
                if garbage:
                    stranger.send(garbage)
        entered.set()

    def member() -> int:
        assert entered.wait(HANG_S)
        return client(where)

    entered = threading.Event()
    pids, error, fds = together(lambda: server(where), strangers, member)
    assert (pids, error, fds) == ({1: os.getpid()}, None, 1)
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_client_that_leaves_ends_it_for_everyone() -> None:
    where = meeting(3)
    left = threading.Event()  # were the other client there first, the server might be done before it can see who leaves

    def leaver() -> None:
        with connected(where) as connection:
            connection.send(hello(where, 2))
        left.set()

    def stayer() -> int:
        assert left.wait(HANG_S)
        return client(where, 1, 5)

    error, other, _ = together(lambda: server(where), stayer, leaver)
    assert isinstance(error, PeerLostError)
    assert "lost rank 2" in str(error)
    assert isinstance(other, PeerLostError | TimeoutError)  # TimeoutError: it came when all was over


def test_clients_that_the_server_has_not_seen_yet_are_told_too() -> None:
    where = meeting(3)

    def busy_server() -> None:
        with RendezvousServer(where, Deadline(20)):
            deadline = time.monotonic() + HANG_S
            sockets = Path("/proc/net/unix")  # the listener and two connections
            while sum(f"@{where.address.decode()}" in line for line in sockets.read_text().splitlines()) < 3:
                assert time.monotonic() < deadline
            raise PeerLostError("lost rank 1")

    answers = together(busy_server, lambda: client(where, 1), lambda: client(where, 2))
    assert [type(answer) for answer in answers] == [PeerLostError] * 3
    assert ["told by rank 0: lost rank 1" in str(answer) for answer in answers] == [False, True, True]


def test_all_clients_get_descriptors_or_none() -> None:
    """A client that leaves after everyone has come, but before the descriptors do, takes the others with it."""
    where = meeting(3)
    gone = threading.Event()

    def leaver() -> None:
        with connected(where) as connection:
            connection.send(hello(where, 2))
            assert came.wait(HANG_S)
        gone.set()

    came = threading.Event()

    def fds(rank: int) -> list[int]:
        came.set()
        assert gone.wait(HANG_S)
        return [0]

    open_before = len(os.listdir("/proc/self/fd"))
    error, other, _ = together(lambda: server(where, fds=fds), lambda: client(where), leaver)
    assert isinstance(error, PeerLostError)
    assert isinstance(other, PeerLostError)
    assert "told by rank 0" in str(other)
    assert "lost rank 2" in str(other)
    assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize("count", [1, FDS_PER_MESSAGE, FDS_PER_MESSAGE + 1])
def test_any_number_of_descriptors(count: int) -> None:
    where = meeting()
    _, came = together(lambda: server(where, fds=lambda rank: [0] * count), lambda: client(where))
    assert came == count


def test_a_hundred_failures_leak_no_descriptor() -> None:
    def fail() -> None:
        where = meeting()
        with pytest.raises(TimeoutError, match=f"rank 0 did not come.*{ON_SEVERAL_HOSTS}"):
            client(where, timeout_s=1e-3)
        with pytest.raises(TimeoutError, match=f"rank 1 did not come.*{ON_SEVERAL_HOSTS}"):
            server(where, timeout_s=1e-3)

    fail()
    before = os.listdir("/proc/self/fd")
    for _ in range(100):
        fail()
    assert os.listdir("/proc/self/fd") == before
