"""How the ranks of several hosts find each other over TCP: rank 0 listens at an address that all of them know.

    caller (every other rank)              server (rank 0)
    HELLO      nonce                    ->
                                        <- CHALLENGE  nonce, HMAC(secret, "server", HELLO, nonce)
    PROOF      HMAC(secret, "caller",
               HELLO, CHALLENGE)        ->
    RECORD     what the rank is         ->
    TIMED_OUT  how long it has waited,
               if its time is over      ->
                                        <- ANSWER     where all ranks are, or an error,
                                                      or that it is to come again

Neither side believes or answers anything before the other has proven that it knows the job's secret, which is never
sent. RECORD, TIMED_OUT and ANSWER are JSON with a length before and an HMAC-SHA256 behind, under a key made of the
secret and both nonces. They hold nothing secret: the job's keys are made from the secret and a nonce in the answer.

This file holds the messages and the caller's side; rendezvous_server.py holds the server's.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import json
import math
import os
import socket
import stat
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ringreduce import _core, config
from ringreduce.errors import Error, InvalidArgumentError, MismatchError, PeerLostError, TimeoutError
from ringreduce.job import places
from ringreduce.job.deadline import CHECK_S, Deadline
from ringreduce.job.handshake import errno_text, same_mac, told_error
from ringreduce.job.tcp.agents_secret import is_of_an_agent
from ringreduce.job.tcp.dial import first_connected
from ringreduce.job.tcp.listening_ports import ANY, VARIABLE, allowed_ports, listening, meeting_ports
from ringreduce.job.tcp.unproven import NO_ROOM

MAGIC = b"ringrdt4"
NONCE_NBYTES = 32
MAC_NBYTES = 32
HELLO_NBYTES = len(MAGIC) + NONCE_NBYTES
CHALLENGE_NBYTES = len(MAGIC) + NONCE_NBYTES + MAC_NBYTES
LENGTH = struct.Struct("<I")
RECORD_NBYTES_MOST = 4 << 10
ANSWER_NBYTES_MOST = 16 << 20
SECRET_NBYTES_LEAST = 16
_agents_keys: dict[str, bytes] = {}
"""Of files of agents, by path: systemd-logind may remove such a file when its user logs out (RemoveIPC=yes)."""
BACKLOG = 1024
"""Of the socket where a rank listens for the others."""
CONNECT_S = 3.0
"""One attempt at the addresses of rank 0's host; a packet filter that drops packets answers none."""
HOST_HAS_GONE = frozenset((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH))
"""What a connection ends with whose other side's host answers no more."""
TURNED_AWAY_S = 0.02
"""How long a caller waits before it comes again to rank 0, which had no room for it."""
STALE_S = 5.0
"""How long a rank that is told where an earlier rank 0 has listened gives the present one to tell something else."""
LATE_S = 3.0
"""How long rank 0 goes on telling late ranks why a meeting has failed."""
LATE_AFTER_LOSS_S = 0.5
"""The same where a rank is lost or time has run out: rank 0's own error is to be seen before a launcher ends rank 0."""
COME_AGAIN = {"come again": True}
"""An answer: rank 0 still tells others why an earlier init() has failed, and is not at this one yet."""
LAST_ANSWER_S = 2.0
"""How much longer than its own deadline a caller waits for rank 0, which can say which ranks are missing."""
TIMED_OUT = b"timed out"
"""The label of the message by which a caller asks for that."""


@dataclass(frozen=True)
class TcpMeeting:
    """What the ranks know beforehand."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    rank: int
    size: int
    init_count: int
    """Which init() of this process it is, as each rank must say."""
    transport: str = "auto"
    """Of RINGREDUCE_TRANSPORT."""
    segment_nbytes: int = 0
    """Data in a packet at most; 0: as the network allows."""

    def where(self) -> str:
        """The address in one word."""
        return address_text(self.host, self.port)

    def me(self) -> str:
        """How messages begin."""
        return f"[rendezvous] rank {self.rank}/{self.size}"


@dataclass(frozen=True)
class Met:
    """What a rank holds after the meeting; it owns the socket."""

    placed: places.PlacedRanks
    listener: socket.socket
    """Listens for the other ranks' connections, at addresses[rank]."""
    addresses: list[tuple[str, int]]
    """By rank: IP address and port."""
    key: bytes = field(repr=False)
    """Of this job's connections: 32 bytes, the same on all ranks."""
    groups_secret: bytes = field(repr=False)
    """For groups of the job's ranks that meet later, as those of torch.distributed: 32 bytes, the same on all ranks."""

    def network(self) -> _core.TcpNetwork:
        """The connections to ranks on other hosts, as a context takes them. It has the listener from then on.

        Raises InvalidArgumentError for a bad RINGREDUCE_ENCRYPT, UnavailableError where libcrypto is missing.
        """
        encrypt = config.choice("RINGREDUCE_ENCRYPT")
        rank = self.placed.placement.rank
        return _core.TcpNetwork(rank, self.listener.detach(), self.addresses, self.key, encrypt=encrypt)


def meet(
    meeting: TcpMeeting,
    deadline: Deadline,
    gate: socket.socket | None = None,
    listener: socket.socket | None = None,
) -> Met:
    """Meets the ranks of all hosts. Collective over the job.

    Args:
        deadline: until when all ranks must have come.
        gate: rank 0's socket, which listens at the address already; closed here. None: it is made here.
        listener: rank 0's for the connections of the job; closed here where this fails. None: it is made here.

    Raises:
        TimeoutError: names the missing ranks, or why rank 0 could not be reached.
        MismatchError: ranks disagree about size, rank or number of init() calls, or have other secrets.
        PeerLostError: rank 0, or another rank, went away meanwhile.
        InvalidArgumentError: rank 0 is not at the address; or the ranks run different builds.
        UnavailableError: no file descriptor is left. HorovodInternalError: another error of the operating system.
    """
    from ringreduce.job.tcp.rendezvous_server import serve

    with errno_text(meeting.me(), meeting.where()):
        if meeting.rank == 0:
            listener, answer, mine = serve(meeting, deadline, gate, listener)
        else:
            mine = places.own_record(meeting.rank, meeting.size, meeting.transport)
            listener, answer = _call(meeting, mine, deadline)
    try:
        places.check_agreement(answer["distinct"], mine, meeting.size, "[rendezvous]")
        hosts = answer["hosts"]
        nonce = bytes.fromhex(answer["nonce"])
        here = mine["host"].encode()
        name = mac(meeting.secret, b"local address", nonce, here)[:16].hex().encode()
        placed = places.PlacedRanks(
            places.placement(hosts, meeting.rank, "address"),
            hosts,
            b"ringreduce." + name,
            mac(meeting.secret, b"local secret", nonce, here),
        )
        addresses = [(str(ip), int(port)) for ip, port in answer["addresses"]]
        key = mac(meeting.secret, b"connections", nonce)
        return Met(placed, listener, addresses, key, mac(meeting.secret, b"groups", nonce))
    except BaseException:
        listener.close()
        raise


def address_text(host: str, port: int) -> str:
    """ "host:port", with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, what: str = "address ") -> tuple[str, int]:
    """Host and port of "host:port"; an IPv6 address stands in brackets. Raises InvalidArgumentError.

    what: stands before the text in an error, as "RINGREDUCE_ADDRESS=".

    >>> parse_address("[fe80::1]:29500")
    ('fe80::1', 29500)
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host and not bracketed):
        raise InvalidArgumentError(
            f'{what}{text!r} is not of the form "host:port": the host of rank 0 and a port that is free there'
        )
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise InvalidArgumentError(f"{what}{text!r}: {host!r} cannot be a host's name: {error}") from None
    return host.strip("[]"), int(port)


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """A 32-byte key made of a file's content.

    Raises InvalidArgumentError when it cannot be read, when others than its owner may read it, or when it has fewer
    than 16 bytes.
    """
    import hashlib

    remedy = f"make one with: (umask 077; head -c 32 /dev/urandom | base64 > {os.fspath(path)})"
    if is_of_an_agent(os.fspath(path)):
        folder = os.path.dirname(path)
        remedy = (
            f"ringrun's agent has made it. This rank may be in a container that has not this host's {folder}: share "
            "that folder with it (podman run --ipc=host has /dev/shm), or set RINGREDUCE_SECRET_FILE in the containers "
            "of all ranks to a file that is the same in all. Or systemd-logind has removed it (RemoveIPC=yes)"
        )
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            content = file.read(1 << 16).strip()
    except OSError as error:
        if known := _agents_keys.get(os.fspath(path)):
            return known
        raise InvalidArgumentError(f"the job's secret file cannot be read: {error}; {remedy}") from None
    if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in (os.geteuid(), 0):
        raise InvalidArgumentError(
            f"the job's secret file {os.fspath(path)} can be read or written by other users (mode "
            f"{stat.S_IMODE(facts.st_mode):04o}, owner {facts.st_uid}): chmod 600, or {remedy}"
        )
    if len(content) < SECRET_NBYTES_LEAST:
        raise InvalidArgumentError(
            f"the job's secret file {os.fspath(path)} has {len(content)} bytes, fewer than {SECRET_NBYTES_LEAST}; "
            f"{remedy}"
        )
    key = hashlib.sha256(content).digest()
    if is_of_an_agent(os.fspath(path)):
        _agents_keys[os.fspath(path)] = key
    return key


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 of the parts, each with its length before it."""
    import hmac

    return hmac.digest(key, b"".join(LENGTH.pack(len(part)) + part for part in parts), "sha256")


def session_key(secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    """The key of RECORD, TIMED_OUT and ANSWER on one connection."""
    return mac(secret, b"session", hello, challenge)


def sealed(key: bytes, label: bytes, body: bytes) -> bytes:
    """A message with its length and its HMAC. label: "record", TIMED_OUT or "answer"; body: JSON."""
    return LENGTH.pack(len(body)) + body + mac(key, label, body)


def unsealed(key: bytes, label: bytes, body: bytes, seal: bytes) -> Any:
    """The content of a message. Raises MismatchError when the HMAC is another's."""
    if not same_mac(seal, mac(key, label, body)):
        raise MismatchError("a message of the rendezvous was changed on its way")
    return json.loads(body)


def own_record(
    meeting: TcpMeeting, mine: dict[str, Any], listener: socket.socket | None, problem: str = ""
) -> dict[str, Any]:
    """What this rank says of itself. mine: of places.own_record(); problem: why it has no listener."""
    ip, port = listener.getsockname()[:2] if listener is not None else ("", 0)
    return mine | {
        "size": meeting.size,
        "init_count": meeting.init_count,
        "ip": ip,
        "port": port,
        "problem": problem,
    }


def rank_listener(ip: str) -> socket.socket:
    """A socket that listens at an address of this host for the other ranks' connections."""
    return listening(ip, own_ports(), BACKLOG)


def users_ports() -> range:
    """Those of RINGREDUCE_PORTS. Raises InvalidArgumentError for a bad one."""
    return allowed_ports(config.value(VARIABLE).value)


def own_ports() -> Sequence[int]:
    """At which ports this rank may listen for the job's connections: of RINGREDUCE_PORTS those at which no rank 0 is
    awaited. Raises InvalidArgumentError for a bad RINGREDUCE_PORTS."""
    ports = users_ports()
    if ports == ANY:
        return ports
    awaited = {config.value("RINGREDUCE_ADDRESS").value.rpartition(":")[2]}
    if "SLURM_STEP_ID" in os.environ:
        awaited |= set(map(str, meeting_ports(ports)))
    return [port for port in ports if str(port) not in awaited]


def _own_listener(ip: str) -> tuple[socket.socket | None, Exception | None]:
    """A listener, or why there is none: rank 0 has to hear that, or it would wait for this rank."""
    try:
        return rank_listener(ip), None
    except (Error, OSError) as error:
        return None, error


def _call(meeting: TcpMeeting, mine: dict[str, Any], deadline: Deadline) -> tuple[socket.socket, Any]:
    """The caller's side: a listener for connections, and rank 0's answer."""
    lost = PeerLostError(
        f"{meeting.me()}: lost rank 0: it gathers the ranks at {meeting.where()}, and went away before all had come; "
        "its own error says why"
    )
    known: Any = None  # where rank 0 has been found
    early_until_s = -math.inf  # so long rank 0 may still be at an earlier init(), whose end is no loss
    while True:
        connected, at = _connect(meeting, deadline, lost, known)
        with connected as connection, ExitStack() as undo:
            listener, problem = _own_listener(connection.getsockname()[0])
            if listener is not None:
                undo.enter_context(listener)
            try:
                answer = _ask(meeting, connection, own_record(meeting, mine, listener, str(problem or "")), deadline)
                if answer == COME_AGAIN:
                    early_until_s, known = time.monotonic() + LATE_S, None
                    raise _NotHeardError
            except _NotHeardError:
                # Rank 0 had no room for one more that has proven nothing, or has gone; then nobody will listen there.
                deadline.check()
                if deadline.expired():
                    raise lost if known else _not_heard(meeting, deadline) from None
                time.sleep(TURNED_AWAY_S)
                continue
            except (ConnectionError, EOFError):
                # Likewise, before it had this rank's proof. Whether it still listens tells which.
                deadline.check()
                if deadline.expired():
                    raise lost from None
                known = None if time.monotonic() < early_until_s else at
                time.sleep(TURNED_AWAY_S)
                continue
            if listener is None:
                assert problem is not None
                raise problem  # and rank 0 has told it to the others
            if "error" in answer:
                raise told_error(answer["kind"], f"{meeting.me()}: told by rank 0: {answer['error']}")
            undo.pop_all()
            return listener, answer


class _NotHeardError(Exception):
    """The connection has ended before rank 0 has said that it has room for this rank, or rank 0 is not there yet."""


def _not_heard(meeting: TcpMeeting, deadline: Deadline) -> TimeoutError:
    return TimeoutError(
        f"{meeting.me()}: what listens at {meeting.where()} has taken connections for {deadline.timeout_s:g} s, and "
        "ended each without an answer: is it another program, or does it only pass connections on to rank 0 (a proxy, "
        "an ssh tunnel), which does not run?"
    )


def _connect(meeting: TcpMeeting, deadline: Deadline, lost: PeerLostError, known: Any) -> tuple[socket.socket, Any]:
    """A connection to rank 0, and where it is; retried until there is one, after 20 ms at first and 0.5 s at last.

    Args:
        lost: raised where nobody listens at the known address any more.
        known: where rank 0 has been found, as of getaddrinfo(); None: it may still be on its way.
    """

    def prepare(connection: socket.socket) -> None:
        if meeting.segment_nbytes:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, meeting.segment_nbytes)
        # So that a host that vanishes while its ranks are waited for is noticed.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
            connection.setsockopt(socket.IPPROTO_TCP, option, seconds)

    pause_s = 0.02
    while True:
        try:
            found = [known] if known else socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
            return first_connected(found, min(CONNECT_S, deadline.remaining_s()) or CONNECT_S, prepare)
        except OSError as error:
            if error.errno in NO_ROOM and not isinstance(error, socket.gaierror):
                raise
            reason, is_refused = str(error), error.errno == errno.ECONNREFUSED
        deadline.check()
        if known and (is_refused or deadline.expired()):
            raise lost
        if deadline.expired():
            raise TimeoutError(
                f"{meeting.me()}: no connection to rank 0 at {meeting.where()} within {deadline.timeout_s:g} s: "
                f"{reason}. Is rank 0 running there, and may this host, {os.uname().nodename}, reach that port?"
            )
        time.sleep(min(pause_s, deadline.remaining_s()))
        pause_s = min(2 * pause_s, 0.5)


def _ask(meeting: TcpMeeting, connection: socket.socket, record: dict[str, Any], deadline: Deadline) -> Any:
    hello = MAGIC + os.urandom(NONCE_NBYTES)
    challenge = b""
    _set_timeout(connection, deadline)
    try:
        try:
            connection.sendall(hello)
            challenge = _receive(connection, CHALLENGE_NBYTES, deadline)
        except (ConnectionError, EOFError):
            raise _NotHeardError from None
        if not challenge.startswith(MAGIC):
            deadline.check_for(STALE_S)
            raise MismatchError(f"{meeting.me()}: what listens at {meeting.where()} is not this version of ringreduce")
        nonce, proof = challenge[len(MAGIC) : -MAC_NBYTES], challenge[-MAC_NBYTES:]
        if not same_mac(proof, mac(meeting.secret, b"server", hello, nonce)):
            deadline.check_for(STALE_S)
            raise MismatchError(
                f"{meeting.me()}: what listens at {meeting.where()} does not know this job's secret: the secret "
                "files differ, or another job listens at this address"
            )
        key = session_key(meeting.secret, hello, challenge)
        connection.sendall(
            mac(meeting.secret, b"caller", hello, challenge) + sealed(key, b"record", json.dumps(record).encode())
        )
        last_word = sealed(key, TIMED_OUT, json.dumps(deadline.timeout_s).encode())
        (nbytes,) = LENGTH.unpack(_receive(connection, LENGTH.size, deadline, last_word))
        if nbytes > ANSWER_NBYTES_MOST:
            raise MismatchError(f"{meeting.me()}: rank 0 announces an answer of {nbytes} bytes")
        body = _receive(connection, nbytes, deadline)
        return unsealed(key, b"answer", body, _receive(connection, MAC_NBYTES, deadline))
    except OSError as error:
        if error.errno in HOST_HAS_GONE:
            raise ConnectionResetError(*error.args) from None
        if not isinstance(error, builtins.TimeoutError):
            raise
        who = f"rank 0 at {meeting.where()}" if challenge else f"what listens at {meeting.where()}"
        why = "other ranks have not come, or it is stopped" if challenge else "it is stopped, or another program"
        raise TimeoutError(f"{meeting.me()}: {who} has not answered within {deadline.timeout_s:g} s: {why}") from None


def _set_timeout(connection: socket.socket, deadline: Deadline) -> None:
    if deadline.overrun_s() > LAST_ANSWER_S:
        raise builtins.TimeoutError
    left = deadline.wait_s()
    connection.settimeout(None if left is None else left + LAST_ANSWER_S)


def _receive(connection: socket.socket, nbytes: int, deadline: Deadline, last_word: bytes = b"") -> bytes:
    """Exactly so many bytes. Raises EOFError when the other side closes before, the builtin TimeoutError, and what the
    deadline's check raises meanwhile.

    last_word: what the other side is told where nothing has come before the deadline.
    """
    unsaid = last_word

    def part(most: int) -> bytes:
        nonlocal unsaid
        while True:
            _set_timeout(connection, deadline)
            if deadline.has_check:
                connection.settimeout(CHECK_S)
            elif unsaid:
                connection.settimeout(deadline.wait_s())
            try:
                return connection.recv(most)
            except builtins.TimeoutError:
                if not deadline.has_check and not unsaid:
                    raise
            deadline.check()
            if unsaid and deadline.expired():
                with contextlib.suppress(OSError):  # recv() says what has become of the connection
                    connection.sendall(unsaid)
                unsaid = b""

    return exactly(nbytes, part)


def exactly(nbytes: int, part: Callable[[int], bytes]) -> bytes:
    """So many bytes. part: takes how many at most, and returns some; none at the end, where this raises EOFError."""
    received = bytearray()
    while len(received) < nbytes:
        some = part(nbytes - len(received))
        if not some:
            raise EOFError("the other side has ended the connection")
        received += some
    return bytes(received)
