"""A rank of another host that is late: a rank that waits for it says where it stands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deadlines import HANG_S
from lab.lab import Lab
from lab.requirements import missing
from tcp_jobs import lab_job, pid_of, secret_file

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LATE = """
import os
import sys
import time
import numpy as np
import ringreduce as rr

def works():
    while not os.path.exists(sys.argv[2]):
        pass

rr.init()
rr.allreduce(np.ones(3000), name="before")
if rr.rank() == int(sys.argv[1]):
    print("late", flush=True)
    works()
total = rr.allreduce(np.ones(3000), name="after", op=rr.Sum)
print("sum", int(total[0]), flush=True)
"""


@pytest.fixture(name="lab", scope="module")
def lab_of_three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        secret_file(lab.folder)
        (lab.folder / "late.py").write_text(LATE)
        yield lab


@contextmanager
def late_job(lab: Lab, late: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks on each of three hosts. One of them is late until there is a file, and has come so far."""
    end_file(lab).unlink(missing_ok=True)
    program = [sys.executable, lab.folder / "late.py", str(late), end_file(lab)]
    with lab_job(lab, program, "abc", 2, {"RINGREDUCE_STALL_WARNING": "1.5"}) as ranks:
        assert line_of(ranks[late]) == "late"
        yield ranks


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end_file(lab: Lab) -> Path:
    return lab.folder / "end"


def end_of(lab: Lab, ranks: list[subprocess.Popen[str]]) -> list[str]:
    """Lets the late rank come. What the ranks have written since."""
    end_file(lab).touch()
    outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    assert all(output.endswith(f"sum {len(ranks)}\n") for output in outputs), outputs
    return outputs


@pytest.mark.parametrize(("late", "speaks"), [(5, 0), (2, 0), (0, 1)])
def test_where_a_rank_of_another_host_stands(lab: Lab, late: int, speaks: int) -> None:
    with late_job(lab, late) as ranks:
        warning = line_of(ranks[speaks])
        outputs = end_of(lab, ranks)
    told = (
        rf"for rank\(s\) {late}; the other ranks have submitted it\. Rank {late} called allreduce 'before' #0 last; "
        rf"its process \d+ on {'abc'[late // 2]} uses \d+ % of a core.*; its main thread is at late\.py:\d+ in works: "
    )
    assert re.search(told, warning), warning
    assert not any("waiting" in output for output in outputs), outputs


def test_the_leader_of_its_host_tells_that_a_rank_is_stopped(lab: Lab) -> None:
    with late_job(lab, 5) as ranks:
        stopped = pid_of(lab, "c", 5)
        os.kill(stopped, signal.SIGSTOP)
        warning = line_of(ranks[0])
        os.kill(stopped, signal.SIGCONT)
        end_of(lab, ranks)
    assert re.search(r"\. The process \d+ of rank 5 on c is stopped, by SIGSTOP or the like\.", warning), warning


def test_the_leader_of_a_host_is_stopped(lab: Lab) -> None:
    with late_job(lab, 5) as ranks:
        stopped = pid_of(lab, "c", 4)
        os.kill(stopped, signal.SIGSTOP)
        warning = line_of(ranks[0])
        while "has been waiting" not in warning:  # that rank 4 is stalled, before
            warning = line_of(ranks[0])
        os.kill(stopped, signal.SIGCONT)
        end_of(lab, ranks)
    assert " has not said where it stands" in warning, warning
