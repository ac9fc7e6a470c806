"""Timelines of a job on hosts whose clocks show different times: merged, they tell one time, within the bound told."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from deadlines import HANG_S
from tcp_jobs import secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing
from ringreduce.timeline import record_file
from ringreduce.timeline.job import Job

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SHIFT_S = {"a": 0, "b": 100, "c": -5}
"""How much later each host's CLOCK_MONOTONIC is than the machine's, by a time namespace (time_namespaces(7))."""

SHIFTED = """#!/bin/sh
case $(hostname) in
b) exec unshare --time --monotonic=100 --fork --kill-child -- "$@" ;;
c) exec unshare --time --monotonic=-5 --fork --kill-child -- "$@" ;;
esac
exec "$@"
"""

SUMS = """
import time
import numpy as np
import ringreduce as rr

rr.init()
for step in range(100):
    time.sleep(0.002)
    rr.allreduce(np.ones(3000), name="gradients")
    rr.allreduce(np.ones(3))
rr.shutdown()
"""


def test_hosts_of_different_clocks_tell_one_time() -> None:
    with Lab(3) as lab:
        records = lab.folder / "records"  # each host has a /tmp of its own
        secret_file(lab.folder)
        (lab.folder / "sums.py").write_text(SUMS)
        shifted = lab.folder / "shifted"
        shifted.write_text(SHIFTED)
        shifted.chmod(0o755)
        program = [shifted, sys.executable, lab.folder / "sums.py"]
        with tcp_ranks(lab, program, "abc", 2, {"RINGREDUCE_TIMELINE": str(records)}) as ranks:
            outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
            assert [process.returncode for process in ranks] == [0] * 6, outputs
        check(records)


def check(records: Path) -> None:
    job = Job.load(records)
    assert not job.warnings
    assert set(job.operations["rows"]) == {6}
    assert len(job.operations) == 200
    for rank in range(6):
        clock, host = job.clocks[rank], "abc"[rank // 2]
        own = record_file.read(records / f"rank-{rank:04}.rr").records["ended_ns"]
        error_ns = np.abs(clock.to_job(own) - (own - SHIFT_S[host] * 1_000_000_000))
        assert clock.source == {"a": "same host" if rank else "reference"}.get(host, "pings")
        assert (error_ns <= clock.half_width_ns).all(), (rank, error_ns.max(), clock.half_width_ns)
        assert 0 <= clock.half_width_ns < 1_000_000_000  # the wall clocks alone would not tell
    # Nobody has ended an operation before all had called it, within what the clocks can tell.
    sure_ns = 2 * max(clock.half_width_ns for clock in job.clocks.values())
    complete = np.repeat(job.operations["complete_ns"], job.operations["rows"])
    ends = job.rows["ended_ns"][np.argsort(job.rows["operation"], kind="stable")]
    assert (ends >= complete - sure_ns).all()
