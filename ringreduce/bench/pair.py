"""One TCP connection between two hosts, measured: round trips, whether full packets pass, bytes a second each way.

    caller                                     answerer
    nonce                                  ->
                                           <-  nonce, HMAC(key, "pair answerer", both nonces)
    HMAC(key, "pair caller", both nonces)  ->
    order (kind, number), and so on        ->
                                           <-  what was ordered

Neither reads an order or a byte of data before the other has proved that it has the key. A stream lasts a time, not a
number of bytes, and only its second half counts: before, windows grow, and shapers let a burst pass.
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

from ringreduce.bench.percentile import p99
from ringreduce.job.deadline import Deadline
from ringreduce.job.handshake import same_mac
from ringreduce.job.tcp.rendezvous import MAC_NBYTES, NONCE_NBYTES, exactly, mac

ORDER = struct.Struct("<BI")
PONG = struct.Struct("<dI")  # the answerer's clock, and how many packets it has sent again
RATE = struct.Struct("<dQ")  # bytes a second, and bytes in all
CHUNK_NBYTES = 1 << 18
FULL_NBYTES = 1 << 16  # some 45 packets of Ethernet's full size
MORE, LAST = b"\1", b"\0"
DIAL_S = 3.0
PROOF_S = 1.0
STEP_S = 3.5
"""Without a byte for so long a step has failed. Lost packets are sent again after 0.2, 0.4, 0.8 and 1.6 s."""
STREAM_S = 0.6
STREAM_ROUND_TRIPS = 24
"""A window that begins at 10 packets and doubles has then been at 64 MiB for half of the time."""
STREAM_MOST_S = 4.0
PAIR_S = 30.0
"""A pair takes no longer. What is on its way at the end of a stream has to arrive, at the pace of the link."""
PINGS = 100
PINGS_S = 0.4
TOTAL_RETRANS_AT = 100  # in struct tcp_info, linux/tcp.h
MSS_AT = 16


class Kind(IntEnum):
    """What an answerer is asked for."""

    PING = 1  # a PONG
    TAKE = 2  # to take so many bytes, and then to send one
    GIVE = 3  # to send so many bytes
    TAKE_STREAM = 4  # to take a stream, and then to send its RATE
    GIVE_STREAM = 5  # to send a stream of so many milliseconds


MOST = {Kind.PING: 0, Kind.TAKE: FULL_NBYTES, Kind.GIVE: FULL_NBYTES, Kind.TAKE_STREAM: 0, Kind.GIVE_STREAM: 10_000}


@dataclass
class Measured:
    """Of one pair. Times are in seconds, rates in bytes per second; None where it did not come so far.

    Attributes:
        problem: why it ended early; "" where it did not.
        round_trip_s: the median of PINGS, p99_s and least_s.
        clock_s: by how much the answerer's clock is ahead.
        there, back: the rate from the caller to the answerer, and from there.
        nbytes: of both streams.
        resent: packets that were sent again, by both.
        mss: bytes of data in a full packet.
    """

    problem: str = ""
    round_trip_s: float | None = None
    p99_s: float | None = None
    least_s: float | None = None
    clock_s: float | None = None
    there: float | None = None
    back: float | None = None
    nbytes: int = 0
    resent: int = 0
    mss: int = 0


class Channel:
    """A connection with a deadline for all of it, and STEP_S for each wait."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self.connection = connection
        self._deadline = deadline

    def send(self, data: bytes | memoryview) -> None:
        """All of it. Raises OSError."""
        self._limit()
        self.connection.sendall(data)

    def receive(self, nbytes: int) -> bytes:
        """Exactly so many bytes. Raises OSError, and EOFError where the other side ends before."""
        return exactly(nbytes, self._part)

    def receive_into(self, room: memoryview) -> int:
        """One part of what comes, as long as there is room. Raises OSError and EOFError."""
        self._limit()
        got = self.connection.recv_into(room)
        if got == 0:
            raise EOFError("the other side has ended the connection")
        return got

    def tcp_info(self, at: int) -> int:
        """Four bytes of struct tcp_info."""
        info = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        return int.from_bytes(info[at : at + 4], sys.byteorder) if len(info) >= at + 4 else 0

    def _part(self, most: int) -> bytes:
        self._limit()
        return self.connection.recv(most)

    def _limit(self) -> None:
        left_s = self._deadline.remaining_s()
        if left_s == 0:
            raise TimeoutError
        self.connection.settimeout(min(STEP_S, max(left_s, 1e-3)))


def measured(address: tuple[str, int], key: bytes) -> dict[str, Any]:
    """Calls an answerer and measures, within PAIR_S. What fails is said in "problem": nothing is raised."""
    found = Measured()
    step = "no connection"
    try:
        with called(address, key) as connection:
            channel = Channel(connection, Deadline(PAIR_S))
            step = "connected, and then no answer to small packets"
            ping(channel, found)
            step = "small packets pass, full ones do not get there"
            channel.send(ORDER.pack(Kind.TAKE, FULL_NBYTES))
            channel.send(bytes(FULL_NBYTES))
            channel.receive(1)
            step = "small packets pass, full ones do not come back"
            channel.send(ORDER.pack(Kind.GIVE, FULL_NBYTES))
            channel.receive(FULL_NBYTES)
            step = "it broke off while data went there"
            stream_there(channel, found)
            step = "it broke off while data came back"
            channel.send(ORDER.pack(Kind.GIVE_STREAM, int(1000 * _stream_s(found))))
            found.back, nbytes = _taken(channel)
            found.nbytes += nbytes
            step = "it broke off at the end"
            found.resent = channel.tcp_info(TOTAL_RETRANS_AT) + _pong(channel)[1]
            found.mss = channel.tcp_info(MSS_AT)
    except (OSError, EOFError) as error:
        found.problem = f"{step}: {reason(error)}"
    return asdict(found)


def called(address: tuple[str, int], key: bytes) -> socket.socket:
    """A connection to an answerer; both sides have proved that they have the key.

    Raises OSError, and EOFError where the other side ends or does not have the key.
    """
    connection = socket.create_connection(address, DIAL_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = Channel(connection, Deadline(STEP_S))
        mine = os.urandom(NONCE_NBYTES)
        channel.send(mine)
        answer = channel.receive(NONCE_NBYTES + MAC_NBYTES)
        theirs, proof = answer[:NONCE_NBYTES], answer[NONCE_NBYTES:]
        if not same_mac(proof, mac(key, b"pair answerer", mine, theirs)):
            raise EOFError("another program, or another machine, answers at that address")
        channel.send(mac(key, b"pair caller", mine, theirs))
    except BaseException:
        connection.close()
        raise
    return connection


def accepted(connection: socket.socket, key: bytes) -> None:
    """The other side of called(), within PROOF_S. Raises OSError and EOFError."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel = Channel(connection, Deadline(PROOF_S))
    theirs, mine = channel.receive(NONCE_NBYTES), os.urandom(NONCE_NBYTES)
    channel.send(mine + mac(key, b"pair answerer", theirs, mine))
    if not same_mac(channel.receive(MAC_NBYTES), mac(key, b"pair caller", theirs, mine)):
        raise EOFError("a stranger called")


class Answerer:
    """Answers one caller after the other at a listener, on a thread of its own, until it is closed."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        self._listener = listener
        self._key = key
        self._lock = threading.Lock()
        self._is_closed = False
        self._connection: socket.socket | None = None
        self._listener.settimeout(0.1)
        self._thread = threading.Thread(target=self._run, name="ringreduce pair")
        self._thread.start()

    def close(self) -> None:
        """Ends the thread, also where it is answering."""
        with self._lock:
            self._is_closed = True
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # a caller that has gone, or no descriptor is left
                time.sleep(0.05)
                continue
            with connection, suppress(OSError, EOFError):
                with self._lock:
                    self._connection = None if self._is_closed else connection
                if self._connection is not None:
                    self._serve(connection)
            with self._lock:
                self._connection = None

    def _serve(self, connection: socket.socket) -> None:
        accepted(connection, self._key)
        channel = Channel(connection, Deadline(PAIR_S))
        while not self._is_closed:
            self._answer(channel)

    def _answer(self, channel: Channel) -> None:
        kind, number = ORDER.unpack(channel.receive(ORDER.size))
        if kind not in MOST or number > MOST[Kind(kind)]:
            raise EOFError("an order of another version")
        if kind == Kind.PING:
            channel.send(PONG.pack(time.time(), channel.tcp_info(TOTAL_RETRANS_AT)))
        elif kind == Kind.TAKE:
            channel.receive(number)
            channel.send(b"!")
        elif kind == Kind.GIVE:
            channel.send(bytes(number))
        elif kind == Kind.TAKE_STREAM:
            channel.send(RATE.pack(*_taken(channel)))
        else:
            _give(channel, number / 1000)


def ping(channel: Channel, found: Measured) -> None:
    """Fills in the times and the clock."""
    seconds: list[float] = []
    ahead: list[float] = []
    while len(seconds) < PINGS and (not seconds or sum(seconds) < PINGS_S):
        begin, begin_clock = time.perf_counter(), time.time()
        clock, _ = _pong(channel)
        seconds.append(time.perf_counter() - begin)
        ahead.append(clock - begin_clock - seconds[-1] / 2)
    found.round_trip_s = statistics.median(seconds)
    found.p99_s = p99(sorted(seconds))
    found.least_s = min(seconds)
    found.clock_s = ahead[seconds.index(found.least_s)]


def stream_there(channel: Channel, found: Measured) -> None:
    """Fills in the rate; after ping()."""
    channel.send(ORDER.pack(Kind.TAKE_STREAM, 0))
    _give(channel, _stream_s(found))
    found.there, nbytes = RATE.unpack(channel.receive(RATE.size))
    found.nbytes += nbytes


def reason(error: BaseException) -> str:
    """In a few words."""
    if isinstance(error, TimeoutError):
        return "nothing came in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _stream_s(found: Measured) -> float:
    return min(STREAM_MOST_S, max(STREAM_S, STREAM_ROUND_TRIPS * (found.round_trip_s or 0.0)))


def _pong(channel: Channel) -> tuple[float, int]:
    channel.send(ORDER.pack(Kind.PING, 0))
    clock, resent = PONG.unpack(channel.receive(PONG.size))
    return float(clock), int(resent)


def _give(channel: Channel, seconds: float) -> None:
    """A stream: chunks, each with a byte before it that says whether it is one."""
    chunk = memoryview(MORE + bytes(CHUNK_NBYTES))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        channel.send(chunk)
    channel.send(LAST)


def _taken(channel: Channel) -> tuple[float, int]:
    """Takes a stream: its rate in the second half of its time, and its bytes."""
    room = memoryview(bytearray(CHUNK_NBYTES))
    times, totals = [time.perf_counter()], [0]
    while channel.receive(1) == MORE:
        left = CHUNK_NBYTES
        while left > 0:
            got = channel.receive_into(room[:left])
            left -= got
            times.append(time.perf_counter())
            totals.append(totals[-1] + got)
    half = (times[0] + times[-1]) / 2
    at = max(0, next(number for number, when in enumerate(times) if when >= half) - 1)
    seconds = times[-1] - times[at]
    return ((totals[-1] - totals[at]) / seconds if seconds > 0 else 0.0), totals[-1]


def pairs(hosts: int, mesh: int = 8) -> Sequence[tuple[int, int]]:
    """Which hosts are measured, the caller first: all; of more than `mesh` hosts, each with the next and the first.

    >>> pairs(3)
    [(0, 1), (0, 2), (1, 2)]
    """
    every = [(one, other) for one in range(hosts) for other in range(one + 1, hosts)]
    return [pair for pair in every if hosts <= mesh or pair[0] == 0 or pair[1] == pair[0] + 1]
