"""Links that lose packets, and connections that somebody resets, while ranks on three hosts reduce."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import lab_job, secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.requirements import missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables (apt-get install)"),
]
STEADY = "tcp flags & (syn | rst) == 0 tcp dport != 22 tcp sport != 22"
"""What nft calls a packet of a TCP connection that is there; ssh's apart."""

SUMS = """
import sys, time
import numpy as np
import ringreduce as rr
rr.init()
steps = int(sys.argv[1])
try:
    for step in range(steps):
        for count in (2, 2000, 500_000):
            x = (np.arange(count) % 97 + rr.rank() + step % 7).astype(np.float32)
            wanted = ((np.arange(count) % 97 + step % 7) * rr.size() + sum(range(rr.size()))).astype(np.float32)
            assert (rr.allreduce(x, op=rr.Sum) == wanted).all(), (step, count)
        if step == 2:
            print("at work", flush=True)
    rr.shutdown()
    print("all sums are right", flush=True)
except rr.PeerLostError as error:
    print(f"{time.time():.3f} {error}", flush=True)
"""


@pytest.fixture(scope="module", name="lab")
def three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        secret_file(lab.folder)
        (lab.folder / "sums.py").write_text(SUMS)
        yield lab


@pytest.mark.parametrize("encrypt", ["on", "off"])
def test_lost_packets_change_no_sum(lab: Lab, encrypt: str) -> None:
    """TCP sends again what is lost: one packet of fifty, in an order that differs from connection to connection."""
    command = [sys.executable, lab.folder / "sums.py", "30"]
    with (
        lab.filter("b", "numgen random mod 50 == 0", "drop") as dropped,
        lab_job(lab, command, "abc", 1, {"RINGREDUCE_ENCRYPT": encrypt}) as ranks,
    ):
        outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
        assert dropped() > 20
    for output in outputs:
        said = [line for line in output.splitlines() if not line.startswith("ringreduce warning")]  # of a late rank
        assert said == ["at work", "all sums are right"], output


def test_a_connection_that_is_reset_is_a_lost_rank_on_all_hosts(lab: Lab) -> None:
    with lab_job(lab, [sys.executable, lab.folder / "sums.py", str(10**9)], "abc", 1) as ranks:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "at work\n"
        reset_s = time.time()
        with lab.filter("b", STEADY, "reject with tcp reset") as reset:
            outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
            assert reset() > 0
    for rank, output in enumerate(outputs):
        assert re.search(r"lost rank [012]: .*(Connection reset by peer|Broken pipe)", output), (rank, output)
        assert "something between the hosts has reset the connection" in output, (rank, output)
        assert float(output.split()[0]) - reset_s < SOON_S, (rank, output)
