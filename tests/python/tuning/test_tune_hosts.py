"""`ringreduce tune -H` over the lab's hosts: the link is measured, and the plan serves on all hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from deadlines import HANG_S

from ringreduce import plan
from ringreduce.lab.lab import Lab
from ringreduce.lab.mpi import settings
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(name="lab", scope="module")
def two_hosts() -> Iterator[Lab]:
    with Lab(2, rate="100mbit") as lab:
        yield lab


def on_hosts(lab: Lab, module: str, *words: str, **env: str) -> tuple[int, str]:
    command = [*run_module(module), *words, "--bind", "none", f"--ssh-args=-F {lab.ssh.parent / 'config'}"]
    done = lab.run("a", command, env=settings(lab.ssh) | {"OMP_NUM_THREADS": "1"} | env, timeout_s=HANG_S)
    return done.status, done.output


def test_two_hosts_are_measured_and_the_plan_serves_on_both(lab: Lab) -> None:
    path = lab.folder / "plan.json"
    status, output = on_hosts(lab, "ringreduce.tuning", "-H=a:2,b:2", "-o", str(path))
    assert status == 0, output
    assert "tune: 2 ranks on each of 2 hosts" in output
    link = re.search(r"slowest link +([\d.]+) MB/s", output)
    assert link is not None, output
    assert float(link[1]) < 14  # 100 Mbit/s, less what headers take
    one = plan.read(str(path))
    assert (one.ranks, one.eager_nbytes) == ((2, 2), 0)
    assert [choice["name"] for choice in one.measured["choices"]] == ["chunk"]
    for row in one.measured["reductions"]:
        if row["nbytes"] >= 256 << 10:  # half of the bytes cross each way, less the burst that the shaper lets pass
            assert row["measured_us"] > 0.5 * row["nbytes"] / 12.5
    bench = ("allreduce", "--sizes", "8,64K", "--iters", "3")
    status, output = on_hosts(lab, "ringreduce.bench", *bench, "-H=a:2,b:2", RINGREDUCE_PLAN=str(path))
    assert status == 0, output
    assert "0 OK" in output
    status, output = on_hosts(lab, "ringreduce.bench", *bench, "-H=a:1,b:2", RINGREDUCE_PLAN=str(path))
    assert status != 0
    assert "measured for 2 ranks on each of 2 hosts, and this job has 1 + 2 ranks on 2 hosts" in output
