"""ringreduce bench -H over the lab's hosts: alone, with the links' limit; and beside Gloo and the MPIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import HANG_S

from ringreduce.bench import link
from ringreduce.lab.lab import Lab
from ringreduce.lab.mpi import settings
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HOSTS = "a:2,b:2"
HANGS = "mpich 4.0.2"
"""Debian's, over UCX: on a loaded machine 2 of 20 of its jobs between hosts hung, and no other competitor's."""


@pytest.fixture(name="lab", scope="module")
def two_hosts() -> Iterator[Lab]:
    with Lab(2, rate="100mbit") as lab:
        yield lab


def bench(lab: Lab, *words: str, hosts: str = f"-H={HOSTS}") -> str:
    """What it prints; hosts of the lab share cores, so nothing is bound."""
    command = [*run_module("ringreduce.bench"), "allreduce", hosts, "--bind", "none", *words]
    command.append(f"--ssh-args=-F {lab.ssh.parent / 'config'}")
    done = lab.run("a", command, env=settings(lab.ssh) | {"OMP_NUM_THREADS": "1"}, timeout_s=HANG_S)
    assert done.status == 0, done.output
    return done.output


def test_alone_with_the_limit_of_the_link(lab: Lab) -> None:
    hosts = Path("/tmp/hosts-of-this-test")  # a folder that each host has of its own
    lab.run("a", ["sh", "-c", f"printf 'a slots=2\\nb slots=2\\n' > {hosts}"])
    output = bench(lab, "--sizes", "8,1M", "--json", "-", hosts=f"--hostfile={hosts}")
    assert "allreduce, 4 ranks on 2 hosts" in output
    document = json.loads(output.splitlines()[-1])
    assert document["meta"]["hosts"] == 2
    small, large = document["results"]
    assert [row["wrong"] for row in (small, large)] == [0, 0]
    # 1 MiB at 100 Mbit/s is 84 ms: the sum cannot come faster, and the limit has to be about that.
    assert large["time_us"]["p50"] > 75_000
    limit_us = large["fraction_of_limit"] * large["time_us"]["p50"]
    assert 75_000 < limit_us < 840_000  # both are measured, on cores that others may use
    assert 0 < small["fraction_of_limit"] < 1.5


def test_beside_gloo_and_the_mpis(lab: Lab) -> None:
    words = ["--sizes", "64K", "--rounds", "1", "--iters", "5", "--deadline", "60", "--vs"]
    words += ["gloo,openmpi,mpich,mpi4py", "--json", "-"]
    output = bench(lab, *words)
    assert f"4 ranks, on {HOSTS}" in output
    cells = json.loads(output.splitlines()[-1])["cells"]
    status = {cell["competitor"]: cell["status"] for cell in cells}
    if status.get(HANGS) == "timeout":  # it costs its cell and nothing else
        del status[HANGS]
    assert status["ringreduce private"] == "ok", output
    for name, outcome in status.items():
        assert outcome == ("unsupported" if name.startswith("mpi4py") or name.endswith("xhc") else "ok"), output
    assert len(status) > 3, status


def test_hosts_and_ranks_that_differ(lab: Lab) -> None:
    done = lab.run("a", [*run_module("ringreduce.bench"), "allreduce", "-H", HOSTS, "-np", "3"])
    assert done.status == 2
    assert "-np 3, and the hosts have 4 slots" in done.output


def test_one_other_host_is_measured_there(lab: Lab) -> None:
    output = bench(lab, "--sizes", "8", "--iters", "20", "--json", "-", hosts="-H=b:1")
    assert json.loads(output.splitlines()[-1])["meta"]["ranks"] == 1
    done = lab.run("a", [*run_module("ringreduce.bench"), "allreduce", "-H", "nobody:1", "--sizes", "8"])
    assert done.status != 0
    assert "nobody" in done.output


def test_options_for_ssh_without_hosts(lab: Lab) -> None:
    done = lab.run("a", [*run_module("ringreduce.bench"), "allreduce", "--ssh-args=-4"])
    assert (done.status, "--ssh-args is for other hosts: say which by -H" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("collective", "hosts", "share"),
    [
        ("allreduce", [0, 0, 2, 2], 1.0),
        ("allreduce", [0, 1, 2, 3], 1.5),
        ("reducescatter", [0, 0, 2, 2], 0.5),
        ("allgather", [0, 0, 0, 3], 0.75),
        ("alltoall", [0, 0, 2, 2], 1.0),
        ("alltoall", [0] * 7 + [7], 0.875),
        ("broadcast", [0, 0, 2], 1.0),
    ],
)
def test_what_the_busiest_host_sends_or_receives(collective: str, hosts: list[int], share: float) -> None:
    assert link.share(collective, hosts) == share
