"""The rendezvous over TCP where something is wrong: strangers, few file descriptors, deaths, and init() again."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deadlines import HANG_S
from ranks import receive_from_test, send_to_test, start_ranks

from ringreduce.job.deadline import Deadline
from ringreduce.job.tcp_rendezvous import HELLO_NBYTES, MAGIC, NONCE_NBYTES, TcpMeeting, mac, meet
from ringreduce.job.tcp_rendezvous_server import listening_at

SECRET = bytes(range(32))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FaultyGate(socket.socket):
    """Each accept() reports an error of a connection that has broken in the queue, while there are errors left."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            number = self.errors.pop()
            raise OSError(number, os.strerror(number))
        return super().accept()


def gate_at(port: int, kind: type[socket.socket] = socket.socket) -> socket.socket:
    gate = kind(socket.AF_INET, socket.SOCK_STREAM)
    gate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    gate.bind(("127.0.0.1", port))
    gate.listen(100)
    return gate


def test_connections_that_break_in_the_queue_do_not_end_the_rendezvous() -> None:
    names = (
        "ECONNABORTED EHOSTUNREACH ENETDOWN ENETUNREACH EPROTO ENOPROTOOPT EHOSTDOWN ENONET EOPNOTSUPP ETIMEDOUT EPERM"
    )
    gate = gate_at(0, FaultyGate)
    assert isinstance(gate, FaultyGate)
    gate.errors = [getattr(errno, name) for name in names.split()]
    port = gate.getsockname()[1]

    def come(rank: int) -> int:
        meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 2, 1)
        met = meet(meeting, Deadline(HANG_S), gate if rank == 0 else None)
        met.listener.close()
        return met.placed.placement.local_rank

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(come, range(2))) == [0, 1]
    assert gate.errors == []


def leave_descriptors(count: int) -> None:
    """This process can open so many more."""
    free = 0
    for limit in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        if free == count:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            return
        try:
            os.fstat(limit)
        except OSError:
            free += 1


def meets_with_few_descriptors(port: int, count: int) -> int:
    """Rank 0 listens and has so many descriptors left; the others come when the test says so."""
    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    gate = None
    if rank == 0:
        gate = listening_at("127.0.0.1", port, size, "me", Deadline(HANG_S))
        leave_descriptors(count)
        send_to_test("listens")
    else:
        receive_from_test()
    met = meet(TcpMeeting("127.0.0.1", port, SECRET, rank, size, 1), Deadline(HANG_S), gate)
    met.listener.close()
    return met.placed.placement.size


def test_strangers_do_not_take_the_last_descriptors() -> None:
    port = free_port()
    with contextlib.ExitStack() as stack, start_ranks(meets_with_few_descriptors, 3, args=(port, 8)) as job:
        assert job.receive(0) == "listens"
        for number in range(200):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=HANG_S))
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    stranger.sendall(MAGIC + os.urandom(NONCE_NBYTES))
        for rank in (1, 2):
            job.send(rank, "come")
        outcomes = job.wait(HANG_S)
    assert [outcome.value for outcome in outcomes] == [3, 3, 3], outcomes


def test_rank_0_that_has_no_descriptor_for_a_rank() -> None:
    """One is left for a connection, and two ranks come."""
    port = free_port()
    with start_ranks(meets_with_few_descriptors, 3, args=(port, 3)) as job:
        assert job.receive(0) == "listens"
        for rank in (1, 2):
            job.send(rank, "come")
        job.procs[0].wait(HANG_S)
        for rank in (1, 2):
            job.kill(rank)
        first = job.wait(HANG_S)[0]
    words = rf"UnavailableError.*\[rendezvous\] rank 0/3 at 127.0.0.1:{port}: .*Too many open files.*\(ulimit -n\)"
    assert re.match(words, str(first.error)), first


def test_a_rank_that_rank_0_has_turned_away_to_make_room_comes_again() -> None:
    gate = gate_at(0)
    port = gate.getsockname()[1]

    def come(rank: int) -> int:
        meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 2, 1)
        if rank == 0:  # as it does where strangers have taken all places
            with gate.accept()[0] as turned_away:
                hello = turned_away.recv(HELLO_NBYTES, socket.MSG_WAITALL)
                nonce = os.urandom(NONCE_NBYTES)
                turned_away.sendall(MAGIC + nonce + mac(SECRET, b"server", hello, nonce))
        met = meet(meeting, Deadline(HANG_S), gate if rank == 0 else None)
        met.listener.close()
        return met.placed.placement.local_rank

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(come, range(2))) == [0, 1]
