"""One TCP connection between two hosts, measured: round trips, whether full packets pass, bytes a second each way.

    caller                                     answerer
    nonce                                  ->
                                           <-  nonce, HMAC(key, "pair answerer", both nonces)
    HMAC(key, "pair caller", both nonces) ->
    order (kind, nbytes), and so on        ->
                                           <-  what was ordered

Neither reads an order or a byte of data before the other has proved that it has the key.
"""

from __future__ import annotations

import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

from ringreduce.job.handshake import same_mac
from ringreduce.job.tcp_rendezvous import MAC_NBYTES, NONCE_NBYTES, mac

ORDER = struct.Struct("<BI")
PONG = struct.Struct("<dI")  # the answerer's clock, and how many packets it has sent again
NBYTES_MOST = 1 << 29
CHUNK_NBYTES = 1 << 18
FIRST_NBYTES = 1 << 16  # some 45 packets of Ethernet's full size
DIAL_S = 3.0
STEP_S = 5.0
"""Without a byte for so long a step has failed. Lost packets are sent again after 0.2, 0.4, 0.8 and 1.6 s."""
STREAM_S = 0.4
PINGS = 100
TOTAL_RETRANS_AT = 100  # in struct tcp_info, linux/tcp.h
MSS_AT = 16


class Kind(IntEnum):
    """What an answerer is asked for."""

    PING = 1  # a PONG
    TAKE = 2  # to take so many bytes, and then to send one
    GIVE = 3  # to send so many bytes


@dataclass
class Measured:
    """Of one pair. Times are in seconds, rates in bytes per second; None where it did not come so far.

    Attributes:
        problem: why it ended early; "" where it did not.
        round_trip_s: the median of PINGS, and p99_s.
        clock_s: by how much the answerer's clock is ahead.
        there, back: the rate from the caller to the answerer, and from there.
        resent: packets that were sent again, by both.
        mss: bytes of data in a full packet.
    """

    problem: str = ""
    round_trip_s: float | None = None
    p99_s: float | None = None
    clock_s: float | None = None
    there: float | None = None
    back: float | None = None
    resent: int = 0
    mss: int = 0


def measured(address: tuple[str, int], key: bytes) -> dict[str, Any]:
    """Calls an answerer and measures. What fails is said in "problem": nothing is raised."""
    found = Measured()
    step = "no connection"
    try:
        with called(address, key, DIAL_S) as connection:
            connection.settimeout(STEP_S)
            step = "connected, and then no answer to small packets"
            _ping(connection, found)
            step = "small packets pass, full ones do not get there"
            _take(connection, FIRST_NBYTES)
            step = "small packets pass, full ones do not come back"
            _give(connection, FIRST_NBYTES)
            step = "it broke off while data went there"
            found.there = _rate(connection, _take)
            step = "it broke off while data came back"
            found.back = _rate(connection, _give)
            step = "it broke off at the end"
            found.resent = _of_tcp_info(connection, TOTAL_RETRANS_AT) + _pong(connection)[1]
            found.mss = _of_tcp_info(connection, MSS_AT)
    except (OSError, EOFError) as error:
        found.problem = f"{step}: {_reason(error)}"
    return asdict(found)


def called(address: tuple[str, int], key: bytes, timeout_s: float) -> socket.socket:
    """A connection to an answerer; both sides have proved that they have the key.

    Raises OSError, and EOFError where the other side ends or does not have the key.
    """
    connection = socket.create_connection(address, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine = os.urandom(NONCE_NBYTES)
        connection.sendall(mine)
        answer = receive(connection, NONCE_NBYTES + MAC_NBYTES)
        theirs, proof = answer[:NONCE_NBYTES], answer[NONCE_NBYTES:]
        if not same_mac(proof, mac(key, b"pair answerer", mine, theirs)):
            raise EOFError("another program, or another machine, answers at that address")
        connection.sendall(mac(key, b"pair caller", mine, theirs))
    except BaseException:
        connection.close()
        raise
    return connection


def accepted(connection: socket.socket, key: bytes, timeout_s: float) -> None:
    """The other side of called(). Raises OSError and EOFError."""
    connection.settimeout(timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    theirs, mine = receive(connection, NONCE_NBYTES), os.urandom(NONCE_NBYTES)
    connection.sendall(mine + mac(key, b"pair answerer", theirs, mine))
    if not same_mac(receive(connection, MAC_NBYTES), mac(key, b"pair caller", theirs, mine)):
        raise EOFError("a stranger called")


class Answerer:
    """Answers one caller after the other at a listener, on a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._key = key
        self._is_closed = False
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._run, name="ringreduce pair")
        self._thread.start()

    def close(self) -> None:
        """Ends the thread: within STEP_S where a caller is being answered."""
        self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody yet, or a caller that has gone
                continue
            with connection, suppress(OSError, EOFError):
                accepted(connection, self._key, DIAL_S)
                connection.settimeout(STEP_S)
                while True:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        kind, nbytes = ORDER.unpack(receive(connection, ORDER.size))
        if nbytes > NBYTES_MOST:
            raise EOFError("an order for too much")
        if kind == Kind.PING:
            connection.sendall(PONG.pack(time.time(), _of_tcp_info(connection, TOTAL_RETRANS_AT)))
        elif kind == Kind.TAKE:
            _drain(connection, nbytes)
            connection.sendall(b"!")
        elif kind == Kind.GIVE:
            _fill(connection, nbytes)
        else:
            raise EOFError("an order of another version")


def receive(connection: socket.socket, nbytes: int) -> bytes:
    """Exactly so many bytes. Raises EOFError where the other side ends before."""
    got = bytearray()
    while len(got) < nbytes:
        part = connection.recv(nbytes - len(got))
        if not part:
            raise EOFError("the other side has ended the connection")
        got += part
    return bytes(got)


def _ping(connection: socket.socket, found: Measured) -> None:
    seconds, ahead = [], []
    for _ in range(PINGS):
        begin, begin_clock = time.perf_counter(), time.time()
        clock, _resent = _pong(connection)
        seconds.append(time.perf_counter() - begin)
        ahead.append(clock - begin_clock - seconds[-1] / 2)
        if sum(seconds) > STREAM_S:
            break
    found.round_trip_s = statistics.median(seconds)
    found.p99_s = sorted(seconds)[(len(seconds) - 1) * 99 // 100]
    found.clock_s = ahead[seconds.index(min(seconds))]


def _pong(connection: socket.socket) -> tuple[float, int]:
    connection.sendall(ORDER.pack(Kind.PING, 0))
    clock, resent = PONG.unpack(receive(connection, PONG.size))
    return float(clock), int(resent)


def _rate(connection: socket.socket, move: Any) -> float:
    """Bytes per second of a stream of about STREAM_S; what is on the way first tells how long that is."""
    nbytes, rate = CHUNK_NBYTES, 0.0
    for _ in range(2):
        begin = time.perf_counter()
        move(connection, nbytes)
        rate = nbytes / (time.perf_counter() - begin)
        nbytes = max(CHUNK_NBYTES, min(NBYTES_MOST, int(rate * STREAM_S)))
    return rate


def _take(connection: socket.socket, nbytes: int) -> None:
    connection.sendall(ORDER.pack(Kind.TAKE, nbytes))
    _fill(connection, nbytes)
    receive(connection, 1)


def _give(connection: socket.socket, nbytes: int) -> None:
    connection.sendall(ORDER.pack(Kind.GIVE, nbytes))
    _drain(connection, nbytes)


def _fill(connection: socket.socket, nbytes: int) -> None:
    zeros = memoryview(bytes(CHUNK_NBYTES))
    for begin in range(0, nbytes, CHUNK_NBYTES):
        connection.sendall(zeros[: nbytes - begin])


def _drain(connection: socket.socket, nbytes: int) -> None:
    room = memoryview(bytearray(CHUNK_NBYTES))
    while nbytes > 0:
        got = connection.recv_into(room[: min(nbytes, CHUNK_NBYTES)])
        if got == 0:
            raise EOFError("the other side has ended the connection")
        nbytes -= got


def _of_tcp_info(connection: socket.socket, at: int) -> int:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(info[at : at + 4], sys.byteorder) if len(info) >= at + 4 else 0


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "nothing came in time"
    return getattr(error, "strerror", None) or str(error)


def pairs(hosts: int, mesh: int = 8) -> Sequence[tuple[int, int]]:
    """Which hosts are measured, the caller first: all; of more than `mesh` hosts, each with the next and the first.

    >>> pairs(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    every = [(one, other) for one in range(hosts) for other in range(one + 1, hosts)]
    return [pair for pair in every if hosts <= mesh or pair[0] == 0 or pair[1] == pair[0] + 1]
