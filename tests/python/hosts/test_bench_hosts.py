"""ringreduce bench -H over the lab's hosts: alone, with the links' limit; and beside Gloo and the MPIs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from deadlines import HANG_S
from lab.lab import Lab
from lab.mpi import settings
from lab.requirements import missing

from ringreduce.launch.python import run_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
HOSTS = "a:2,b:2"


@pytest.fixture(name="lab", scope="module")
def two_hosts() -> Iterator[Lab]:
    with Lab(2, rate="200mbit") as lab:
        yield lab


def bench(lab: Lab, *words: str) -> str:
    """What it prints; hosts of the lab share cores, so nothing is bound."""
    command = [*run_module("ringreduce.bench"), "allreduce", "-H", HOSTS, "--bind", "none", *words]
    command.append(f"--ssh-args=-F {lab.ssh.parent / 'config'}")
    done = lab.run("a", command, env=settings(lab.ssh) | {"OMP_NUM_THREADS": "1"}, timeout_s=HANG_S)
    assert done.status == 0, done.output
    return done.output


def test_alone_with_the_limit_of_the_link(lab: Lab) -> None:
    output = bench(lab, "--sizes", "8,1M", "--iters", "20", "--json", "-")
    assert "allreduce, 4 ranks on 2 hosts" in output
    document = json.loads(output.splitlines()[-1])
    assert document["meta"]["hosts"] == 2
    small, large = document["results"]
    assert [row["wrong"] for row in (small, large)] == [0, 0]
    # 1 MiB at 200 Mbit/s is 42 ms: the sum cannot come faster, and a link that is seen as another's would show here.
    assert large["time_us"]["p50"] > 30_000
    assert 0 < large["fraction_of_limit"] < 1.5
    assert 0 < small["fraction_of_limit"] < 1.5


def test_beside_gloo_and_the_mpis(lab: Lab) -> None:
    file = lab.folder / "cells.json"
    words = [
        "--sizes",
        "64K",
        "--rounds",
        "1",
        "--iters",
        "5",
        "--vs",
        "gloo,openmpi,mpich,mpi4py",
        "--json",
        str(file),
    ]
    output = bench(lab, *words)
    assert f"4 ranks, on {HOSTS}" in output
    cells = json.loads(file.read_text())["cells"]
    status = {cell["competitor"]: cell["status"] for cell in cells}
    assert status["ringreduce private"] == "ok", cells
    for name, outcome in status.items():
        assert outcome == ("unsupported" if name.startswith("mpi4py") or name.endswith("xhc") else "ok"), cells
    assert len(status) > 3, status


def test_hosts_and_ranks_that_differ(lab: Lab) -> None:
    done = lab.run("a", [*run_module("ringreduce.bench"), "allreduce", "-H", HOSTS, "-np", "3"])
    assert done.status == 2
    assert "-np 3, and the hosts have 4 slots" in done.output
