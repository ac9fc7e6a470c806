"""Links that lose packets, and connections that somebody resets, while ranks on three hosts reduce."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import first_lines, secret_file, train_job

from ringreduce.lab.lab import Lab
from ringreduce.lab.requirements import missing

pytestmark = [
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables (apt-get install)"),
]
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
