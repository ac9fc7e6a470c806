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
from tcp_jobs import secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import pid_of, tcp_ranks
from ringreduce.lab.requirements import missing

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
handle = rr.allreduce_async(np.ones(3000), name="after", op=rr.Sum)
print("submitted", flush=True)
print("sum", int(rr.synchronize(handle)[0]), flush=True)
"""


AGAIN_AND_AGAIN = """
import os
import sys
import time
import numpy as np
import ringreduce as rr

def loads():
    time.sleep(0.15)

rr.init()
is_over = np.zeros(1)
while not is_over[0]:
    if rr.rank() == int(sys.argv[1]):
        loads()
    rr.allreduce(np.ones(30_000), name="gradients")
    is_over = rr.allreduce(np.full(1, os.path.exists(sys.argv[2]), np.int32), name="over", op=rr.Sum)
report = rr.report()
rr.shutdown()
print(int(report["latest_rank"]), report["latest_share"] > 0.1, flush=True)
print("sum", rr.init().size, flush=True)
"""


@pytest.fixture(name="lab", scope="module")
def lab_of_three_hosts() -> Iterator[Lab]:
    with Lab(3) as lab:
        secret_file(lab.folder)
        (lab.folder / "late.py").write_text(LATE)
        (lab.folder / "again.py").write_text(AGAIN_AND_AGAIN)
        yield lab


@contextmanager
def late_job(lab: Lab, late: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks on each of three hosts. One is late until there is a file; the others have submitted by then."""
    end_file(lab).unlink(missing_ok=True)
    program = [sys.executable, lab.folder / "late.py", str(late), end_file(lab)]
    with tcp_ranks(lab, program, "abc", 2, {"RINGREDUCE_STALL_WARNING": "1.5"}) as ranks:
        # Who is stopped before it has submitted the operation would itself be the one that is waited for.
        assert [line_of(process) for process in ranks] == [
            "late" if rank == late else "submitted" for rank in range(len(ranks))
        ]
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
    # A leader that hears of one that was stopped may say so after it.
    assert all(f"sum {len(ranks)}" in output.splitlines() for output in outputs), outputs
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


def warning_while_stopped(lab: Lab, host: str, stopped: int, speaks: int) -> str:
    """What a rank writes of an operation that takes long while rank 5 is late and one, perhaps the same, is stopped."""
    with late_job(lab, 5) as ranks:
        pid = pid_of(lab, host, stopped)
        os.kill(pid, signal.SIGSTOP)
        warning = line_of(ranks[speaks])
        while "has been waiting" not in warning:  # of a host's leader: that it is stalled, before
            warning = line_of(ranks[speaks])
        os.kill(pid, signal.SIGCONT)
        end_of(lab, ranks)
    return warning


def test_the_leader_of_its_host_tells_that_a_rank_is_stopped(lab: Lab) -> None:
    warning = warning_while_stopped(lab, "c", 5, 0)
    assert re.search(r"\. The process \d+ of rank 5 on c is stopped, by SIGSTOP or the like\.", warning), warning


def test_the_leader_of_a_host_is_stopped(lab: Lab) -> None:
    warning = warning_while_stopped(lab, "c", 4, 0)
    assert " has not said where it stands" in warning, warning


def test_the_leader_of_this_host_is_stopped(lab: Lab) -> None:
    """Nothing is known of other hosts then. Their ranks are not to blame."""
    warning = warning_while_stopped(lab, "a", 0, 1)
    told = (
        r"has been waiting for \d+(\.\d)? s for rank\(s\) 0, which passes on what other hosts say\. "
        r"The process \d+ of rank 0 on a is stopped, by SIGSTOP or the like\."
    )
    assert re.search(told, warning), warning


@pytest.mark.parametrize(
    ("each", "late", "told", "answer", "latest"),
    [
        (1, 2, "rank 2", r"rank 2 called .*its main thread is at again\.py:\d+ in \S+", [2, -1, -1]),
        (
            2,
            3,
            "rank 2, or another one of its host,",
            r"rank 2 called .*; on its host rank 3 is late: .*waited itself",
            [2, 2, 3, 3],
        ),
        (2, 1, "rank 1", "meanwhile it waited itself", [1, 1]),
    ],
)
def test_a_rank_that_is_late_again_and_again(
    lab: Lab, each: int, late: int, told: str, answer: str, latest: list[int]
) -> None:
    end_file(lab).unlink(missing_ok=True)
    with tcp_ranks(lab, [sys.executable, lab.folder / "again.py", str(late), end_file(lab)], "abc", each) as ranks:
        warning = line_of(ranks[0])
        outputs = end_of(lab, ranks)
    asked = "" if late == 1 else r"\. Asked where it stands: "
    assert re.search(rf"\] {told} is late: in the last .* operations(; |{asked}){answer}", warning), warning
    assert not any("is late" in output for output in outputs), outputs
    # On other hosts, of two ranks with the same work one may come last more often.
    for output, rank in zip(outputs, latest, strict=False):
        assert output.splitlines()[0] == f"{rank} {rank >= 0}", outputs
