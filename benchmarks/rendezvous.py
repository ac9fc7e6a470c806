"""How long many ranks take to meet: rank 0's real rendezvous, and simulated ranks that one process drives.

    .venv/bin/python benchmarks/rendezvous.py [--ranks 1000] [--per-host 8] [--rounds 5]

A simulated rank listens for the job's connections, proves that it knows the secret, sends its record and reads the
answer, as a real one does; only its waiting is a selector's. All begin at once. A round's figure is the time from there
until the last has checked its answer. Rank 0's cost is that of the real one; the others' share one core here, which
each has of its own in a job. Prints the rounds and their median, in seconds, and what each side has computed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ringreduce.bench.options import positive
from ringreduce.job import places
from ringreduce.job.deadline import Deadline
from ringreduce.job.tcp import rendezvous
from ringreduce.job.tcp.rendezvous import CHALLENGE_NBYTES, LENGTH, MAC_NBYTES, MAGIC, NONCE_NBYTES, TcpMeeting
from ringreduce.job.tcp.rendezvous_server import listening_at, serve

SECRET = b"the secret of these ranks alone."
IP = "127.0.0.1"
DEADLINE_S = 60.0


def record(rank: int, per_host: int) -> dict[str, Any]:
    """What a rank says of itself, on a host that it shares with per_host - 1 others."""
    host = rank // per_host
    return places.own_record(0, 1) | {"rank": rank, "host": f"boot id of {host}", "name": f"host-{host}"}


class Rank:
    """One that calls rank 0."""

    def __init__(self, port: int, size: int, mine: dict[str, Any]) -> None:
        self.meeting = TcpMeeting(IP, port, SECRET, mine["rank"], size, 1)
        self.mine = mine
        self.hello = MAGIC + os.urandom(NONCE_NBYTES)
        self.key = b""
        self.received = b""
        self.listener: socket.socket | None = None
        self.connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def begin(self) -> None:
        """Connects, listens and says HELLO."""
        self.connection.connect((IP, self.meeting.port))
        self.connection.setblocking(False)
        self.listener = rendezvous.rank_listener(IP)
        self.connection.send(self.hello)

    def goes_on(self) -> bool:
        """Reads what there is; False once the answer is there. Raises RuntimeError for a wrong one."""
        part = self.connection.recv(1 << 20)
        if not part:
            raise RuntimeError(f"rank {self.meeting.rank}: rank 0 has ended the connection")
        self.received += part
        if not self.key and len(self.received) >= CHALLENGE_NBYTES:
            challenge, self.received = self.received[:CHALLENGE_NBYTES], self.received[CHALLENGE_NBYTES:]
            self.key = rendezvous.session_key(SECRET, self.hello, challenge)
            mine = rendezvous.own_record(self.meeting, self.mine, self.listener)
            proof = rendezvous.mac(SECRET, b"caller", self.hello, challenge)
            self.connection.send(proof + rendezvous.sealed(self.key, b"record", json.dumps(mine).encode()))
        if not self.key or len(self.received) < LENGTH.size:
            return True
        end = LENGTH.size + LENGTH.unpack_from(self.received)[0]
        if len(self.received) < end + MAC_NBYTES:
            return True
        answer = rendezvous.unsealed(self.key, b"answer", self.received[LENGTH.size : end], self.received[end:])
        self._check(answer)
        return False

    def _check(self, answer: dict[str, Any]) -> None:
        assert self.listener is not None
        rank, size = self.meeting.rank, self.meeting.size
        if "error" in answer or answer["addresses"][rank] != list(self.listener.getsockname()):
            raise RuntimeError(f"rank {rank}: a wrong answer: {str(answer)[:200]}")
        places.check_agreement(answer["distinct"], self.mine, size, "[rendezvous]")
        places.placement(answer["hosts"], rank, "address")

    def close(self) -> None:
        """Ends its sockets."""
        for one in (self.connection, self.listener):
            if one is not None:
                one.close()


def drive(channel: Connection, port: int, size: int, per_host: int) -> None:
    """All ranks but rank 0, in a process of their own. Says when they began, when all had met, and CPU seconds."""
    ranks = [Rank(port, size, record(rank, per_host)) for rank in range(1, size)]
    channel.send("ready")
    channel.recv()
    begin_s, cpu_s = time.monotonic(), time.process_time()
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            rank.begin()
            selector.register(rank.connection, selectors.EVENT_READ, rank)
        while selector.get_map():
            ready = selector.select(DEADLINE_S)
            if not ready:
                raise RuntimeError(f"{len(selector.get_map())} ranks wait for rank 0 since {DEADLINE_S:g} s")
            for key, _ in ready:
                if not key.data.goes_on():
                    selector.unregister(key.fileobj)
    channel.send((begin_s, time.monotonic(), time.process_time() - cpu_s))
    for rank in ranks:
        rank.close()


def measure(size: int, per_host: int) -> tuple[float, float, float]:
    """One meeting: seconds that it took, CPU seconds of rank 0, of all the others together."""
    gate = listening_at(IP, 0, size, "rendezvous.py", Deadline(DEADLINE_S))
    meeting = TcpMeeting(IP, gate.getsockname()[1], SECRET, 0, size, 1)
    ours, theirs = multiprocessing.Pipe()
    driver = multiprocessing.get_context("fork").Process(target=drive, args=(theirs, meeting.port, size, per_host))
    driver.start()
    theirs.close()
    with ours:
        try:
            ours.recv()
            ours.send("go")
            cpu_s = time.process_time()
            serve(meeting, Deadline(DEADLINE_S), gate, mine=record(0, per_host))[0].close()
            cpu_s = time.process_time() - cpu_s
            begin_s, end_s, others_s = ours.recv()
        except BaseException:
            driver.kill()
            raise
        finally:
            driver.join()
    return end_s - begin_s, cpu_s, others_s


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=positive, default=1000, metavar="N", help="default %(default)s")
    parser.add_argument("--per-host", type=positive, default=8, metavar="N", help="default %(default)s")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="default %(default)s")
    args = parser.parse_args(argv)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    figures = [measure(args.ranks, args.per_host) for _ in range(args.rounds)]
    for seconds, first_s, others_s in figures:
        print(f"{args.ranks} ranks met in {seconds:.3f} s (CPU: rank 0 {first_s:.3f} s, the others {others_s:.3f} s)")
    print(f"median {statistics.median(one[0] for one in figures):.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
