"""The rendezvous over TCP where something is wrong: strangers, few file descriptors, deaths, and init() again."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import itertools
import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S, SOON_S
from ports import free_port
from ranks import receive_from_test, send_to_test, start_ranks
from tcp_jobs import secret_file, tcp_environment

import ringreduce
from ringreduce.errors import InvalidArgumentError, MismatchError, PeerLostError, TimeoutError
from ringreduce.job import places
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.places import TcpWanted
from ringreduce.job.tcp import rendezvous as tcp_rendezvous
from ringreduce.job.tcp import rendezvous_server as tcp_rendezvous_server
from ringreduce.job.tcp.dial import first_connected
from ringreduce.job.tcp.job import meet_told
from ringreduce.job.tcp.rendezvous import (
    CHALLENGE_NBYTES,
    HELLO_NBYTES,
    LENGTH,
    MAGIC,
    NONCE_NBYTES,
    TcpMeeting,
    mac,
    meet,
)
from ringreduce.job.tcp.rendezvous_server import listening_at
from ringreduce.job.tcp.torchrun_store import ToldAgainError

SECRET = bytes(range(32))


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


def test_a_rank_that_comes_after_an_error_is_told_it() -> None:
    """Rank 1 says another number of ranks; rank 2 comes once rank 1 has been told so."""
    gate = gate_at(0)
    port = gate.getsockname()[1]
    is_told = threading.Event()

    def come(rank: int) -> str:
        if rank == 2:
            assert is_told.wait(HANG_S)
        meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 4 if rank == 1 else 3, 1)
        with pytest.raises(MismatchError) as caught:
            meet(meeting, Deadline(HANG_S), gate if rank == 0 else None)
        if rank == 1:
            is_told.set()
        return str(caught.value)

    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(come, range(3)))
    assert all("says the job has 4 ranks, rank 0 says 3" in text for text in said), said


def test_a_rank_that_calls_init_again_before_the_others_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 says another number of ranks, is told so, and comes again; only then does rank 2 come to the first init().
    Rank 1 is not told the old error once more: it would be one init() ahead of the others from then on."""
    gate = gate_at(0)
    port = gate.getsockname()[1]
    is_there_again = threading.Event()
    ask = tcp_rendezvous._ask

    def asks(meeting: TcpMeeting, *words: Any) -> Any:
        answer = ask(meeting, *words)
        if meeting.init_count == 2:
            is_there_again.set()
        return answer

    def come(rank: int) -> int:
        if rank == 2:
            assert is_there_again.wait(HANG_S)
        first = TcpMeeting("127.0.0.1", port, SECRET, rank, 4 if rank == 1 else 3, 1)
        with pytest.raises(MismatchError, match="says the job has 4 ranks"):
            meet(first, Deadline(HANG_S), gate if rank == 0 else None)
        met = meet(replace(first, size=3, init_count=2), Deadline(HANG_S))
        met.listener.close()
        return met.placed.placement.rank

    monkeypatch.setattr(tcp_rendezvous, "_ask", asks)
    monkeypatch.setattr(tcp_rendezvous_server, "LATE_S", HANG_S)
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(come, range(3))) == [0, 1, 2]


def test_ranks_that_are_ahead_of_rank_0_are_told_so_however_late_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 has called init() once, the others twice; rank 2 comes once rank 1 has been told so."""
    gate = gate_at(0)
    port = gate.getsockname()[1]
    is_told = threading.Event()

    def come(rank: int) -> None:
        if rank == 2:
            assert is_told.wait(HANG_S)
        meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 3, 2 if rank else 1)
        with pytest.raises(MismatchError, match=r"rank 1 on .* is at its init\(\) number 2, rank 0 at number 1"):
            meet(meeting, Deadline(HANG_S), None if rank else gate)
        is_told.set()

    monkeypatch.setattr(tcp_rendezvous_server, "LATE_S", HANG_S)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(come, range(3)))


class Held:
    """What a caller has in a variable."""


@contextlib.contextmanager
def garbage_uncollected() -> Iterator[None]:
    """As where a training script has switched the collector off."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def dials(found: Sequence[tuple[Any, ...]]) -> weakref.ref[Held]:
    held = Held()
    with contextlib.suppress(ConnectionRefusedError, builtins.TimeoutError):
        first_connected(found, 0.5, lambda _: None)[0].close()
    return weakref.ref(held)


def listens() -> weakref.ref[Held]:
    held = Held()
    listening_at("node", free_port(), 2, "me", Deadline(HANG_S)).close()
    return weakref.ref(held)


def test_attempts_in_vain_keep_nothing_of_their_callers_alive(
    monkeypatch: pytest.MonkeyPatch, silent_address: tuple[str, int]
) -> None:
    """Such as a job's connections, which live in a variable of init()."""
    stream = socket.SOCK_STREAM, 0, ""
    refused = (socket.AF_INET, *stream, ("127.0.0.1", free_port()))
    impossible = (socket.AF_X25, *stream, ("", 0))
    silent = (socket.AF_INET, *stream, silent_address)
    with gate_at(0) as gate, garbage_uncollected():
        right = (socket.AF_INET, *stream, gate.getsockname())
        for found in ([refused], [refused, right], [impossible, right], [silent]):
            assert dials(found)() is None
        elsewhere = (socket.AF_INET, *stream, ("192.0.2.1", 0))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [elsewhere, (*right[:-1], ("127.0.0.1", 0))])
        assert listens()() is None


@pytest.fixture(name="silent_address")
def where_nobody_answers() -> Iterator[tuple[str, int]]:
    """Where somebody listens whose queue is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield full.getsockname()


def test_the_first_address_that_answers_is_taken(silent_address: tuple[str, int]) -> None:
    """One is of a family that there is not, one is refused, one is not answered."""
    here = socket.AF_INET, socket.SOCK_STREAM, 0, ""
    with gate_at(0) as gate:
        refused, silent = (*here, ("127.0.0.1", free_port())), (*here, silent_address)
        found = [(socket.AF_X25, socket.SOCK_STREAM, 0, "", ("", 0)), refused, silent, (*here, gate.getsockname())]
        connected, address = first_connected(found, HANG_S, lambda _: None)
        assert address == found[-1]
        with connected as connection:
            assert connection.getpeername() == gate.getsockname()
            assert connection.gettimeout() is None
        with pytest.raises(ConnectionRefusedError):
            first_connected([refused], HANG_S, lambda _: None)
        with pytest.raises(builtins.TimeoutError, match="timed out"):
            first_connected([silent], 0.5, lambda _: None)
        with pytest.raises(OSError, match="no address"):
            first_connected([], HANG_S, lambda _: None)
        with pytest.raises(ConnectionRefusedError) as caught:  # although another has not answered
            first_connected([refused, silent], 0.5, lambda _: None)
        assert caught.value.strerror == "127.0.0.1: [Errno 111] Connection refused; 127.0.0.1: timed out"


def test_rank_0_is_gone_although_another_of_its_addresses_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, silent_address: tuple[str, int]
) -> None:
    """Rank 0 ends while it gathers: its own address refuses from then on, and the other one is never answered."""
    with gate_at(0) as gate:
        here = socket.AF_INET, socket.SOCK_STREAM, 0, ""
        found = [(*here, silent_address), (*here, gate.getsockname())]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with ThreadPoolExecutor(1) as pool:
            caller = pool.submit(meet, TcpMeeting("two.example", 1, SECRET, 1, 2, 1), Deadline(2 * SOON_S))
            connection, _ = gate.accept()
            gate.close()
            hello, nonce = connection.recv(HELLO_NBYTES, socket.MSG_WAITALL), bytes(NONCE_NBYTES)
            connection.sendall(MAGIC + nonce + mac(SECRET, b"server", hello, nonce))
            connection.close()
            with pytest.raises(PeerLostError, match=r"lost rank 0: .* went away before all had come"):
                caller.result(SOON_S)


class DeadlineAtWill(Deadline):
    """Runs out when the test says so."""

    def __init__(self, has_come: threading.Event) -> None:
        super().__init__(HANG_S)
        self._has_come = has_come

    def remaining_s(self) -> float:
        return 0.0 if self._has_come.is_set() else super().remaining_s()


@contextlib.contextmanager
def ending_connections(has_ended_two: threading.Event) -> Iterator[int]:
    """A port where each connection is taken, and ended."""
    gate = gate_at(0)

    def serve() -> None:
        for count in itertools.count():
            with gate.accept()[0] as taken:
                if not taken.recv(HELLO_NBYTES):  # the test is over
                    return
            if count == 1:
                has_ended_two.set()

    with gate, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        try:
            yield gate.getsockname()[1]
        finally:
            socket.create_connection(gate.getsockname()).close()
            served.result(HANG_S)


def test_another_program_that_ends_connections_is_not_called_rank_0() -> None:
    has_ended_two = threading.Event()
    with (
        ending_connections(has_ended_two) as port,
        pytest.raises(TimeoutError, match=r"what listens at .* ended each without an answer: is it another program"),
    ):
        meet(TcpMeeting("127.0.0.1", port, SECRET, 1, 2, 1), DeadlineAtWill(has_ended_two))


def test_what_is_told_anew_is_heard_while_another_program_ends_connections() -> None:
    """As where torchrun has started the ranks again, and the port of the earlier rank 0 is another program's now."""
    has_ended_two = threading.Event()

    def check() -> None:
        if has_ended_two.is_set():
            raise ToldAgainError

    with ending_connections(has_ended_two) as port, pytest.raises(ToldAgainError):
        meet(TcpMeeting("127.0.0.1", port, SECRET, 1, 2, 1), Deadline(SOON_S, check))


def test_a_socket_that_is_connected_to_itself_is_no_answer() -> None:
    """So may be who dials a port of his own host at which nobody listens yet, from that very port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)]
    with pytest.raises(ConnectionRefusedError):
        first_connected(found, SOON_S, lambda one: one.bind(address))
    with socket.create_server(address):  # the port is free again
        pass


def test_another_version_is_told_so() -> None:
    gate = gate_at(0)
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meet, TcpMeeting(*gate.getsockname(), SECRET, 0, 2, 1), Deadline(2), gate)
        with socket.create_connection(gate.getsockname()) as other:
            other.sendall(MAGIC[:-1] + b"0" + bytes(NONCE_NBYTES))
            assert other.recv(CHALLENGE_NBYTES, socket.MSG_WAITALL) == MAGIC.ljust(CHALLENGE_NBYTES, b"\0")
            assert other.recv(1) == b""
        with pytest.raises(TimeoutError, match="Other versions of ringreduce have called: install one version"):
            rank_0.result(HANG_S)


def greets(caller: socket.socket) -> None:
    caller.sendall(MAGIC + bytes(NONCE_NBYTES))
    assert len(caller.recv(CHALLENGE_NBYTES, socket.MSG_WAITALL)) == CHALLENGE_NBYTES


def proves_wrongly(caller: socket.socket) -> None:
    greets(caller)
    caller.sendall(bytes(32))


def sees_another_secret(caller: socket.socket) -> None:
    """A rank sees that from the challenge, and gives no proof of its own."""
    greets(caller)
    caller.shutdown(socket.SHUT_WR)


def speaks_http(caller: socket.socket) -> None:
    caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: rank-0.example.com\r\n\r\n")


def says_too_little(caller: socket.socket) -> None:
    caller.sendall(b"ring")
    caller.shutdown(socket.SHUT_WR)


def says_nothing(caller: socket.socket) -> None:
    caller.shutdown(socket.SHUT_WR)


def is_of_another_version(caller: socket.socket) -> None:
    caller.sendall(MAGIC[:-1] + b"0" + bytes(NONCE_NBYTES))


ONE_SECRET = "1 connection did not know the job's secret, or is another job's."
TWO_SECRETS = "2 connections did not know the job's secret, or are another job's."
ONE_OTHER = "1 connection spoke something else than ringreduce."
TWO_OTHERS = "2 connections spoke something else than ringreduce."
TWO_SILENT = "2 connections said nothing, as port scans and health checks do."
VERSION = "Other versions of ringreduce have called: install one version on all hosts."


@pytest.mark.parametrize(
    ("callers", "said"),
    [
        ([], []),
        ([says_nothing, says_nothing], [TWO_SILENT]),
        ([speaks_http, says_too_little], [TWO_OTHERS]),
        ([sees_another_secret], [ONE_SECRET]),
        ([is_of_another_version], [VERSION]),
        (
            [says_nothing, proves_wrongly, speaks_http, sees_another_secret, says_nothing],
            [TWO_SECRETS, ONE_OTHER, TWO_SILENT],
        ),
    ],
)
def test_rank_0_tells_callers_of_other_kinds_apart(
    callers: list[Callable[[socket.socket], None]], said: list[str]
) -> None:
    gate, all_have_gone = gate_at(0), threading.Event()
    address = gate.getsockname()
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meet, TcpMeeting(*address, SECRET, 0, 2, 1), DeadlineAtWill(all_have_gone), gate)
        try:
            for call in callers:
                with socket.create_connection(address) as caller, contextlib.suppress(ConnectionResetError):
                    caller.settimeout(HANG_S)
                    call(caller)
                    while caller.recv(100):
                        pass
        finally:
            all_have_gone.set()
        with pytest.raises(TimeoutError) as caught:
            rank_0.result(HANG_S)
    strangers = "".join(f" {clause}" for clause in said)
    assert f" within {HANG_S:g} s.{strangers} Other hosts cannot reach 127.0.0.1" in str(caught.value)


def test_a_rank_that_is_stopped_before_its_proof_is_not_said_to_have_another_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ringreduce.job.tcp.rendezvous_server.UNPROVEN_S", 2.0)
    gate, has_gone = gate_at(0), threading.Event()
    address = gate.getsockname()
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meet, TcpMeeting(*address, SECRET, 0, 2, 1), DeadlineAtWill(has_gone), gate)
        try:
            with socket.create_connection(address, HANG_S) as caller:
                greets(caller)
                assert caller.recv(1) == b""
        finally:
            has_gone.set()
        with pytest.raises(TimeoutError) as caught:
            rank_0.result(HANG_S)
    assert "1 connection did not prove within 5 s to know the job's secret, as ranks that are stopped." in str(
        caught.value
    )


def test_callers_that_make_room_are_none_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may have been a rank, which comes again."""
    monkeypatch.setattr("ringreduce.job.tcp.rendezvous_server.places_of_unproven", lambda *_: 2)
    gate, all_have_gone = gate_at(0), threading.Event()
    address = gate.getsockname()
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as open_ones:
        rank_0 = pool.submit(meet, TcpMeeting(*address, SECRET, 0, 2, 1), DeadlineAtWill(all_have_gone), gate)
        try:
            callers = [open_ones.enter_context(socket.create_connection(address, HANG_S)) for _ in range(5)]
            assert [caller.recv(1) for caller in callers[:3]] == [b""] * 3
        finally:
            all_have_gone.set()
        with pytest.raises(TimeoutError) as caught:
            rank_0.result(HANG_S)
    assert "connection" not in str(caught.value)


def test_three_hundred_ranks_meet() -> None:
    """Each checks its answer; how long a thousand take, says the benchmark."""
    program = Path(__file__).parents[3] / "benchmarks" / "rendezvous.py"
    words = [sys.executable, str(program), "--ranks", "300", "--rounds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, "300 ranks met in" in done.stdout) == (0, True), done.stderr


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


@pytest.mark.parametrize("link_local", ["fe80::1", "fe80::1%lo"])
@pytest.mark.parametrize("others", [[], ["127.0.0.1"]])
def test_a_name_with_a_link_local_address(others: list[str], link_local: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers put it first. The other addresses of that name are as good as if there were no such one."""
    stream, port = (socket.SOCK_STREAM, 0, ""), free_port()
    found: list[Any] = [(socket.AF_INET6, *stream, (link_local, port, 0, 1))]
    found += [(socket.AF_INET, *stream, (ip, port)) for ip in others]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    if others:
        with listening_at("node", port, 2, "me", Deadline(HANG_S)) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
    else:
        with pytest.raises(InvalidArgumentError, match=r"is not the address of one interface .* no link-local one"):
            listening_at("node", port, 2, "me", Deadline(HANG_S))


def test_a_name_with_an_address_of_a_family_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """As names have beside their IPv4 address where the kernel was started with ipv6.disable=1."""
    port = free_port()
    addresses = [(socket.AF_INET6, ("2001:db8::7", port, 0, 0)), (socket.AF_INET, ("127.0.0.1", port))]
    found = [(family, socket.SOCK_STREAM, 0, "", address) for family, address in addresses]
    real = socket.socket

    def without_ipv6(family: int, *words: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *words)

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "socket", without_ipv6)
    with listening_at("node", port, 2, "me", Deadline(HANG_S)) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


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


# --- what ends the rendezvous -----------------------------------------------------------------------------------------


def waits_at_the_rendezvous() -> None:
    """From now on the test is told when this rank waits for rank 0's answer, after all that it has to say."""
    receive = tcp_rendezvous._receive

    def told(connection: socket.socket, nbytes: int, *words: Any) -> bytes:
        if nbytes == LENGTH.size:
            send_to_test("waits")
        return receive(connection, nbytes, *words)

    tcp_rendezvous._receive = told


@pytest.fixture(name="tcp")
def patient_tcp(tmp_path: Path) -> dict[str, str]:
    """The variables of a job that waits for its ranks as long as a test may take."""
    return tcp_environment(tmp_path) | {"RINGREDUCE_INIT_TIMEOUT": str(HANG_S)}


def comes_in_turn(late: int) -> str:
    """What init() raises. One rank comes when the test says so."""
    rank = int(os.environ["RINGREDUCE_RANK"])
    waits_at_the_rendezvous()
    if rank == late:
        receive_from_test()
    try:
        ringreduce.init()
    except ringreduce.Error as error:
        send_to_test("raised")
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_rank_dies_at_the_rendezvous(tcp: dict[str, str]) -> None:
    with start_ranks(comes_in_turn, 3, args=(1,), env=tcp) as job:
        assert job.receive(2) == "waits"
        job.kill(2)
        assert job.receive(0) == "raised"  # it does not wait for rank 1
        job.kill(1)
        first = job.wait(HANG_S)[0].value
    assert first == "PeerLostError: [rendezvous] rank 0/3: lost rank 2 at the rendezvous while rank 1 had not come"


def test_rank_0_dies_at_the_rendezvous(tcp: dict[str, str]) -> None:
    with start_ranks(comes_in_turn, 3, args=(2,), env=tcp) as job:
        assert job.receive(1) == "waits"
        job.kill(0)
        assert job.receive(1) == "raised"
        job.kill(2)
        text = job.wait(HANG_S)[1].value
    assert text.startswith("PeerLostError: [rendezvous] rank 1/3: lost rank 0: it gathers the ranks at 127.0.0.1:"), (
        text
    )
    assert "went away before all had come" in text


def comes_with(settings: list[str], name: str) -> str:
    """What init() raises where the ranks have these values of a knob."""
    os.environ[name] = settings[int(os.environ["RINGREDUCE_RANK"])]
    try:
        ringreduce.init()
    except ringreduce.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("RINGREDUCE_TRANSPORT", ["tcp", "shm+tcp"]),
        ("RINGREDUCE_ENCRYPT", ["auto", "on"]),
        ("RINGREDUCE_ALGORITHM", ["ring", "auto"]),
        ("RINGREDUCE_FUSION_THRESHOLD", ["0", "134217728"]),
        ("HOROVOD_FUSION_THRESHOLD", ["0", "134217728"]),
        ("RINGREDUCE_GPU_PATH", ["staged", "auto"]),
    ],
)
def test_ranks_with_other_settings_all_say_so(tcp: dict[str, str], name: str, settings: list[str]) -> None:
    with start_ranks(comes_with, 2, args=(settings, name), env=tcp) as job:
        texts = [one.value for one in job.wait(HANG_S)]
    knob = name.replace("HOROVOD", "RINGREDUCE")
    for rank, text in enumerate(texts):
        assert text.startswith(
            f"MismatchError: [rendezvous] rank {rank}/2: {knob} is {settings[rank]} on this rank, on "
        )
        assert f", and {settings[1 - rank]} on rank {1 - rank}, on " in text
        assert text.endswith(f"mpirun -x {name}")


def test_rank_0_raises_its_own_error_where_nobody_comes_to_be_told(tmp_path: Path) -> None:
    told = []

    def tell(text: str | None) -> str:
        told.append(str(text))
        raise TimeoutError("rank 1 did not come")

    wanted = TcpWanted("192.0.2.1:29400", str(secret_file(tmp_path)), "tcp", None)
    place = Placement(0, 2, 0, 1, 0, 2, "openmpi", "")
    with pytest.raises(InvalidArgumentError, match=r"cannot listen at 192\.0\.2\.1:29400"):
        meet_told(place, wanted, 1, Deadline(HANG_S), "", tell)
    assert "cannot listen at" in told[0]


def test_what_is_wrong_with_rank_0_alone_is_told(tcp: dict[str, str]) -> None:
    with start_ranks(comes_with, 2, args=(["abc", "1024"], "RINGREDUCE_CACHE_CAPACITY"), env=tcp) as job:
        texts = [one.value for one in job.wait(HANG_S)]
    assert texts[0].startswith("InvalidArgumentError: RINGREDUCE_CACHE_CAPACITY=abc"), texts
    assert "rank 1/2: told by rank 0: RINGREDUCE_CACHE_CAPACITY=abc" in texts[1], texts


@pytest.mark.parametrize(
    ("name", "settings"),
    [("RINGREDUCE_FUSION_THRESHOLD", ["4096", " 4.096e3"]), ("RINGREDUCE_ALGORITHM", ["ring", "RING"])],
)
def test_ranks_whose_settings_are_spelled_otherwise_meet(tcp: dict[str, str], name: str, settings: list[str]) -> None:
    with start_ranks(comes_with, 2, args=(settings, name), env=tcp) as job:
        assert [one.value for one in job.wait(HANG_S)] == ["no error"] * 2


class Deaf(socket.socket):
    """A rank that is gone when it is answered."""

    def sendall(self, *_: Any) -> None:
        raise BrokenPipeError


class GateOfDeafOnes(socket.socket):
    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        return Deaf(fileno=connection.detach()), address


def test_a_rank_that_dies_once_all_have_come() -> None:
    gate = gate_at(0, GateOfDeafOnes)
    port = gate.getsockname()[1]

    def come(rank: int) -> str:
        meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 2, 1)
        with pytest.raises(PeerLostError) as caught:
            meet(meeting, Deadline(HANG_S), gate if rank == 0 else None)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(come, range(2))
    assert first == "[rendezvous] rank 0/2: lost rank 1 at the rendezvous"
    assert "went away before all had come" in second


@pytest.mark.parametrize("sees", [[0], [0, 1]])
def test_rank_0_of_a_group_looks_whether_a_member_has_died(sees: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 has not come, so rank 0 has no connection that would end. Rank 1 is told, or sees the death itself."""
    gate, is_waiting, receive = gate_at(0), threading.Event(), tcp_rendezvous._receive
    port = gate.getsockname()[1]

    def receives(connection: socket.socket, nbytes: int, *words: Any) -> bytes:
        if nbytes == LENGTH.size:
            is_waiting.set()
        return receive(connection, nbytes, *words)

    def check() -> None:
        if is_waiting.is_set():
            raise PeerLostError("lost rank 2 of the default group")

    def come(rank: int) -> str:
        deadline = Deadline(SOON_S, check if rank in sees else None)
        with pytest.raises(PeerLostError) as caught:
            meet(TcpMeeting("127.0.0.1", port, SECRET, rank, 3, 1), deadline, None if rank else gate)
        return str(caught.value)

    monkeypatch.setattr(tcp_rendezvous, "_receive", receives)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(come, range(2))
    assert first == "lost rank 2 of the default group"
    # Rank 0 may have gone before it has read what rank 1 has said.
    assert "lost rank 2 of the default group" in second or "lost rank 0: it gathers" in second


def test_a_rank_that_runs_out_of_time_first_hears_who_is_missing() -> None:
    """Rank 2 never comes. Rank 0 would wait for it longer than rank 1 waits for rank 0's last word."""
    gate = gate_at(0)
    port = gate.getsockname()[1]

    def come(rank: int) -> str:
        deadline = Deadline(0.5 if rank else SOON_S)
        with pytest.raises(TimeoutError) as caught:
            meet(TcpMeeting("127.0.0.1", port, SECRET, rank, 3, 1), deadline, None if rank else gate)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(come, range(2))
    assert f"rank 0/3: rank 2 did not come to 127.0.0.1:{port} within 0.5 s." in first
    assert f"rank 1/3: told by rank 0: {first}" in second


def says_of_itself(port: int, rank: int) -> tuple[socket.socket, bytes]:
    """A rank's connection once it has sent its record, and the key of what else it says."""
    connection = socket.create_connection(("127.0.0.1", port), HANG_S)
    hello = MAGIC + bytes(NONCE_NBYTES)
    connection.sendall(hello)
    challenge = connection.recv(CHALLENGE_NBYTES, socket.MSG_WAITALL)
    key = tcp_rendezvous.session_key(SECRET, hello, challenge)
    meeting = TcpMeeting("127.0.0.1", port, SECRET, rank, 3, 1)
    record = tcp_rendezvous.own_record(meeting, places.own_record(rank, 3, "auto"), None)
    body = json.dumps(record | {"port": 1}).encode()
    connection.sendall(mac(SECRET, b"caller", hello, challenge) + tcp_rendezvous.sealed(key, b"record", body))
    return connection, key


@pytest.mark.parametrize(
    ("body", "label", "kind", "words"),
    [
        (b"60.0", b"timed out", TimeoutError, "rank 2 did not come to .* within 60 s"),
        (b"60.0", b"record", MismatchError, "changed on its way"),
        (b"[]", b"timed out", MismatchError, "rank 1 says more than its record"),
        (b" " * 5000, b"timed out", MismatchError, "announces a message of 5000 bytes after its record"),
    ],
)
def test_what_a_rank_says_after_its_record(body: bytes, label: bytes, kind: type[Exception], words: str) -> None:
    gate = gate_at(0)
    port = gate.getsockname()[1]
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meet, TcpMeeting("127.0.0.1", port, SECRET, 0, 3, 1), Deadline(SOON_S), gate)
        connection, key = says_of_itself(port, 1)
        with connection:
            message = tcp_rendezvous.sealed(key, label, body)
            connection.sendall(message[:7])
            connection.sendall(message[7:])
            with pytest.raises(kind, match=words):
                rank_0.result(HANG_S)


def test_a_rank_that_comes_after_another_is_lost_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, is_lost = gate_at(0), threading.Event()
    port = gate.getsockname()[1]
    lost = tcp_rendezvous_server._Server._tell_late_ones

    def tells(*words: Any) -> None:
        is_lost.set()
        lost(*words)

    monkeypatch.setattr(tcp_rendezvous_server, "LATE_AFTER_LOSS_S", HANG_S)
    monkeypatch.setattr(tcp_rendezvous_server._Server, "_tell_late_ones", tells)
    with ThreadPoolExecutor(1) as pool:
        rank_0 = pool.submit(meet, TcpMeeting("127.0.0.1", port, SECRET, 0, 3, 1), Deadline(SOON_S), gate)
        says_of_itself(port, 1)[0].close()
        assert is_lost.wait(SOON_S)
        with pytest.raises(
            PeerLostError, match=r"told by rank 0: .*lost rank 1 at the rendezvous while rank 2 had not"
        ):
            meet(TcpMeeting("127.0.0.1", port, SECRET, 2, 3, 1), Deadline(SOON_S))
        with pytest.raises(PeerLostError, match="lost rank 1 at the rendezvous while rank 2 had not come"):
            rank_0.result(HANG_S)
