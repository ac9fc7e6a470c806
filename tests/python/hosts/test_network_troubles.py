"""What users of other libraries have met between hosts: here it works, or the error names the cause.

Staged elsewhere: an interface that leads nowhere, and docker0 with one address everywhere (test_ringrun_hosts.py); an
MTU that swallows packets, and a slow direction (test_doctor_hosts.py).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import secret_file

from ringreduce.lab import network
from ringreduce.lab.lab import Done, Lab, wait_until
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
needs_nft = pytest.mark.skipif(shutil.which("nft") is None, reason="needs nftables (apt-get install)")

SUM = """
import sys
import numpy as np
import ringreduce as rr
try:
    rr.init()
    x = (np.arange(100_000) % 89 + rr.rank()).astype(np.float32)
    wanted = ((np.arange(100_000) % 89) * rr.size() + sum(range(rr.size()))).astype(np.float32)
    for _ in range(3):
        assert (rr.allreduce(x, op=rr.Sum) == wanted).all()
    rr.shutdown()
    print("the sum is right", flush=True)
except rr.Error as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""
LATE = (
    """
import os, pathlib, socket, sys
import ringreduce as rr
ask, waits = socket.getaddrinfo, pathlib.Path(sys.argv[1])
waits.mkdir(exist_ok=True)
def noted(*args, **kwargs):
    try:
        return ask(*args, **kwargs)
    except socket.gaierror:
        (waits / os.environ["RINGREDUCE_RANK"]).touch()
        raise
socket.getaddrinfo = noted
"""
    + SUM
)
RIGHT = "the sum is right\n"


@pytest.fixture(scope="module", name="lab")
def three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        secret_file(lab.folder)
        (lab.folder / "sum.py").write_text(SUM)
        yield lab


def results(lab: Lab, hosts: str = "abc", per_host: int = 1, env: Mapping[str, str] | None = None) -> list[str]:
    """What each rank says of a sum."""
    with tcp_ranks(lab, [sys.executable, lab.folder / "sum.py"], hosts, per_host, env) as ranks:
        return [process.communicate(timeout=HANG_S)[0] for process in ranks]


def ringrun(lab: Lab, hosts: str, *words: str | Path, env: Mapping[str, str] | None = None) -> Done:
    """On the first host, with the lab's keys."""
    ssh = f"--ssh-args=-F {lab.ssh.parent / 'config'}"
    return lab.run("a", [*run_module("ringreduce.launch.ringrun"), ssh, "-H", hosts, *words], env=env)


@needs_nft
@pytest.mark.parametrize("closed", "ab")
def test_a_host_that_nobody_can_call_but_that_calls(lab: Lab, closed: str) -> None:
    """One direction is blocked; rank 0's host lets in those who come to the rendezvous."""
    with lab.firewall(closed, "29400"):
        assert results(lab) == [RIGHT] * 3


@needs_nft
def test_two_hosts_of_which_neither_can_be_called(lab: Lab) -> None:
    with lab.firewall("a", "29400"), lab.firewall("b", "1"):
        texts = results(lab, "ab")
    for rank, text in enumerate(texts):
        assert f"lost rank {1 - rank}: no connection to 10.77.0.{2 - rank}:" in text, text
        assert "Connection timed out (errno 110); may this host reach that port? RINGREDUCE_PORTS" in text, text


@needs_nft
def test_a_rendezvous_that_nobody_can_call(lab: Lab) -> None:
    with lab.firewall("a", "1"):
        texts = results(lab, "ab", env={"RINGREDUCE_INIT_TIMEOUT": "4"})
    assert "TimeoutError: [rendezvous] rank 0/2: rank 1 did not come to a:29400 within 4 s" in texts[0]
    assert "TimeoutError: [rendezvous] rank 1/2: no connection to rank 0 at a:29400 within 4 s: timed out" in texts[1]
    assert "may this host, b, reach that port?" in texts[1]


@needs_nft
def test_one_range_of_ports_is_open(lab: Lab) -> None:
    with ExitStack() as stack:
        for host in lab.hosts:
            stack.enter_context(lab.firewall(host, "29400-29419"))
        assert results(lab, per_host=2, env={"RINGREDUCE_PORTS": "29400-29409"}) == [RIGHT] * 6
        ports = {"RINGREDUCE_PORTS": "29410-29419"}
        done = ringrun(lab, "a:2,b:2", sys.executable, lab.folder / "sum.py", env=ports)
        assert (done.status, done.output) == (0, 4 * RIGHT)


@needs_nft
def test_ringrun_names_the_ways_that_it_has_tried(lab: Lab) -> None:
    with lab.firewall("b", "1"):
        done = ringrun(lab, "b:1,c:1", "--start-timeout", "10", "true")
    assert done.status == 255
    assert "no address of b, where rank 0 runs, is reached from all hosts. From c: 10.77.0.2 port " in done.output
    assert "no answer within 3 s. Open the way in the packet filter (RINGREDUCE_PORTS says at which" in done.output


def test_a_name_that_is_known_late(lab: Lab) -> None:
    """As in Kubernetes, where a pod's name is known once the pod is ready."""
    waits = lab.folder / "waits"
    program = lab.folder / "late.py"
    program.write_text(LATE)
    address = {"RINGREDUCE_ADDRESS": "later.example:29400", "RINGREDUCE_INIT_TIMEOUT": str(SOON_S)}
    with tcp_ranks(lab, [sys.executable, program, waits], "ab", 1, address) as ranks:
        wait_until(lambda: (waits / "0").exists() and (waits / "1").exists(), "both have asked for the name", HANG_S)
        for host in "ab":
            lab.run(host, ["sh", "-c", "echo 10.77.0.1 later.example >> /etc/hosts"])
        texts = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    assert texts == [RIGHT] * 2


def test_a_name_of_two_addresses_of_which_one_is_dead(lab: Lab) -> None:
    """The connection to the dead one is never answered."""
    for host in "ab":
        lab.run(host, ["sh", "-c", "printf '10.77.0.99 twice\\n10.77.0.1 twice\\n' >> /etc/hosts"])
    assert results(lab, "ab", env={"RINGREDUCE_ADDRESS": "twice:29400"}) == [RIGHT] * 2


@pytest.fixture(name="only_ipv6")
def addresses_of_ipv6_only(lab: Lab) -> Iterator[None]:
    """The hosts have fd77::1, fd77::2, ... and no other address."""
    for index, host in enumerate(lab.hosts):
        network.tool_in(lab._pids[host], ["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=0"])
        own = f"{network.address(index)}/{network.PREFIX} dev {network.INTERFACE}"
        new = f"fd77::{index + 1}/64 dev {network.INTERFACE}"
        network.batch(lab._pids[host], "ip", [f"addr add {new} nodad", f"addr del {own}"])
    yield
    for index, host in enumerate(lab.hosts):
        own = f"{network.address(index)}/{network.PREFIX} dev {network.INTERFACE}"
        new = f"fd77::{index + 1}/64 dev {network.INTERFACE}"
        network.batch(lab._pids[host], "ip", [f"addr del {new}", f"addr add {own}"])


def test_hosts_that_have_ipv6_only(lab: Lab, only_ipv6: None) -> None:
    assert results(lab, per_host=2, env={"RINGREDUCE_ADDRESS": "[fd77::1]:29400"}) == [RIGHT] * 6


@pytest.mark.parametrize("limit", [17, 11])
def test_few_descriptors(lab: Lab, limit: int) -> None:
    """A rank of three on three hosts needs 13 or 14; with fewer no rank hangs, and one that lacks them says so. Who has
    not heard why another one has left knows that it has."""
    program = ["prlimit", f"--nofile={limit}", sys.executable, lab.folder / "sum.py"]
    # It takes 10 s until a rank gives up; one that waits may warn before, and so may one whose dial nobody answers.
    with tcp_ranks(lab, program, "abc", 1, {"RINGREDUCE_STALL_WARNING": "0"}) as ranks:
        texts = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    if limit == 17:
        assert texts == [RIGHT] * 3
    else:
        assert all(text.splitlines()[-1].startswith("PeerLostError: ") for text in texts), "\n\n".join(texts)
        assert any("Too many open files" in text and "ulimit -n" in text for text in texts), texts


def test_a_name_that_is_never_known(lab: Lab) -> None:
    texts = results(lab, "ab", env={"RINGREDUCE_ADDRESS": "nowhere.example:29400", "RINGREDUCE_INIT_TIMEOUT": "1"})
    assert "the name in nowhere.example:29400 is not known on rank 0's host, a: " in texts[0]
    assert "no connection to rank 0 at nowhere.example:29400 within 1 s: " in texts[1]


@pytest.fixture(name="own_name_is_loopback")
def as_debian_writes_it(lab: Lab) -> Iterator[None]:
    """The host a has 127.0.1.1 for its own name; the others have its address."""
    lab.run("a", ["sh", "-c", "cp /etc/hosts /tmp/hosts && (echo 127.0.1.1 a; grep -v ' a$' /tmp/hosts) > /etc/hosts"])
    yield
    lab.run("a", ["sh", "-c", "cat /tmp/hosts > /etc/hosts"])


def test_a_host_whose_own_name_is_loopback(lab: Lab, own_name_is_loopback: None) -> None:
    done = ringrun(lab, "a:1,b:1,c:1", sys.executable, lab.folder / "sum.py")
    assert (done.status, done.output) == (0, 3 * RIGHT)
    texts = results(lab, "ab", env={"RINGREDUCE_INIT_TIMEOUT": "2"})
    assert "Other hosts cannot reach 127.0.1.1: give an address of this host in numbers" in texts[0]
    assert "no connection to rank 0 at a:29400 within 2 s: [Errno 111] Connection refused" in texts[1]
