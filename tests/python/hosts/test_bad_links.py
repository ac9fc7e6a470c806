"""Links that delay, reorder and lose packets, and connections that are reset, while ranks on three hosts reduce."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import first_lines, secret_file, train_job

from ringreduce.lab.cables import Cables, Direction
from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables (apt-get install)"),
]
needs_cables = pytest.mark.skipif(missing(cables=True) is not None, reason=str(missing(cables=True)))
STEADY = "tcp flags & (syn | rst) == 0 tcp dport != 22 tcp sport != 22"
"""What nft calls a packet of a TCP connection that is there; ssh's apart."""


@pytest.fixture(scope="module", name="lab")
def three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        secret_file(lab.folder)
        yield lab


@pytest.mark.parametrize("encrypt", ["on", "off"])
def test_lost_packets_change_no_sum(lab: Lab, encrypt: str) -> None:
    """TCP sends again what is lost: one packet of fifty, in an order that differs from connection to connection."""
    with (
        lab.filter("b", "numgen random mod 50 == 0", "drop") as dropped,
        train_job(lab, 200, "abc", 1, env={"RINGREDUCE_ENCRYPT": encrypt}) as ranks,
    ):
        outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
        assert dropped() > 20
    for rank, output in enumerate(outputs):
        said = [line for line in output.splitlines() if not line.startswith("ringreduce warning")]  # of a late rank
        assert said == [f"ready 0 1 {rank} 3", "done"], output


def test_what_a_cable_does_with_packets() -> None:
    def after_a_cable(cables: Cables, times_s: Sequence[float]) -> list[list[bytes]]:
        """Ten packets are put in at 0 s; what has come out at each of the times."""
        ends = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(2)]
        for end in (*ends[0], *ends[1]):
            end.setblocking(False)
        (inner, source), (target, outer) = ends
        direction = Direction(source.fileno(), target.fileno(), cables, "from a")
        for number in range(10):
            inner.send(b"%d" % number)
        direction.take(0.0)
        came = []
        for time_s in times_s:
            direction.give(time_s)
            came.append([])
            with suppress(BlockingIOError):
                while True:
                    came[-1].append(outer.recv(100))
        for end in (*ends[0], *ends[1]):
            end.close()
        return came

    packets = [b"%d" % number for number in range(10)]
    assert after_a_cable(Cables(0.5), [0.499, 0.5]) == [[], packets]
    early, late = after_a_cable(Cables(0.5, reordered=0.5), [0.25, 0.5])
    assert early
    assert late
    assert sorted(early + late) == packets
    (some,) = after_a_cable(Cables(0.0, lost=0.5), [0.0])
    assert 0 < len(some) < 10
    assert some == sorted(some)
    assert after_a_cable(Cables(0.0, lost=1.0), [1.0]) == [[]]


@pytest.mark.parametrize(
    ("lost", "reordered", "encrypt"),
    [
        (0.01, 0.02, "on"),
        pytest.param(0.01, 0.02, "off", marks=pytest.mark.long),
        pytest.param(0.001, 0.0, "on", marks=pytest.mark.long),
        pytest.param(0.001, 0.0, "off", marks=pytest.mark.long),
    ],
)
@needs_cables
def test_hosts_far_from_each_other(lost: float, reordered: float, encrypt: str) -> None:
    """50 ms there and back, and packets that are lost or overtake others: the right sums, and nobody is lost.

    A packet passes two cables. A rank is said to be late where a connection waits for what is sent again.
    """
    with Lab(3, None, cables=Cables(0.0125, reordered / 2, lost / 2)) as lab:
        secret_file(lab.folder)
        with train_job(lab, 6, "abc", 1, env={"RINGREDUCE_ENCRYPT": encrypt}) as ranks:
            outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    for rank, output in enumerate(outputs):
        said = [line for line in output.splitlines() if not re.match(r"ringreduce warning .* is late", line)]
        assert said == [f"ready 0 1 {rank} 3", "done"], output


def test_a_connection_that_is_reset_is_a_lost_rank_on_all_hosts(lab: Lab) -> None:
    with train_job(lab, 10**9, "abc", 1) as ranks:
        assert first_lines(ranks) == [f"ready 0 1 {rank} 3" for rank in range(3)]
        reset_s = time.time()
        with lab.filter("b", STEADY, "reject with tcp reset") as reset:
            outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
            assert reset() > 0
    for rank, output in enumerate(outputs):
        assert re.search(r"lost rank [012]: .*(Connection reset by peer|Broken pipe)", output), (rank, output)
        assert "something between the hosts has reset the connection" in output, (rank, output)
        assert float(output.split()[0]) - reset_s < SOON_S, (rank, output)


SOAK = """
import json, os, sys, time
import numpy as np
import ringreduce as rr
rr.init()
choose = np.random.default_rng(7)
end = time.monotonic() + float(sys.argv[1])
count, seen, more = 0, [], True
while more:
    for _ in range(200):
        # 8 B to 4 MiB, each doubling as often as the others; large ones more seldom.
        n = int(2 ** choose.uniform(1, 20 if choose.random() < 0.02 else 13))
        x = (np.arange(n) % 97 + rr.rank() + count % 5).astype(np.float32)
        wanted = (np.arange(n) % 97 * rr.size() + sum(range(rr.size())) + count % 5 * rr.size()).astype(np.float32)
        assert (rr.allreduce(x, op=rr.Sum, name=f"of {n % 50}" if count % 2 else None) == wanted).all()
        count += 1
    pages = int(open("/proc/self/statm").read().split()[1])
    seen.append((pages * 4096, len(os.listdir("/proc/self/fd"))))
    more = rr.broadcast(np.array([time.monotonic() < end]), 0)[0]
rr.shutdown()
print("soaked", json.dumps([count, seen]), flush=True)
"""


@needs_cables
@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_encrypted_sums_over_bad_links_for_long() -> None:
    """RR_TEST_SOAK_S=600: seconds. Every sum is right, memory and descriptors stay what they are after a tenth."""
    seconds = float(os.environ.get("RR_TEST_SOAK_S", "600"))
    chance = random.Random(3)
    with Lab(3, None, cables=Cables(0.0001, 0.001, 0.001)) as lab:
        secret_file(lab.folder)
        program = lab.folder / "soak.py"
        program.write_text(SOAK)
        with tcp_ranks(
            lab, [sys.executable, program, str(seconds)], "abc", 1, env={"RINGREDUCE_ENCRYPT": "on"}
        ) as ranks:
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                host = chance.choice(lab.hosts)
                lab.cut(host)
                time.sleep(chance.uniform(0.05, 1.0))
                lab.mend(host)
                time.sleep(chance.uniform(2, 10))
            outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    for rank, output in enumerate(outputs):
        found = re.search(r"^soaked (.*)$", output, re.MULTILINE)
        assert found, (rank, output)
        count, seen = json.loads(found[1])
        early = seen[len(seen) // 10 :]
        print(f"rank {rank}: {count} operations, {early[0][0] >> 20} to {early[-1][0] >> 20} MiB")
        assert max(memory for memory, _ in early) - early[0][0] < 64 << 20, (rank, seen)
        assert early[-1][0] - early[0][0] < 16 << 20, (rank, seen)
        assert {descriptors for _, descriptors in early} == {early[0][1]}, (rank, seen)
