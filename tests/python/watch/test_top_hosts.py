"""`ringreduce top` on hosts of one job: rank 0's host shows all ranks, another one its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S, SOON_S
from tcp_jobs import secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

WAITS = """
import os
import sys
import time
import numpy as np
import ringreduce as rr

rr.init()
rr.allreduce(np.ones(3000), name="before")
if rr.rank() == 1:
    print("late", flush=True)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
rr.allreduce(np.ones(3000), name="after")
"""


@pytest.fixture(name="lab", scope="module")
def lab_of_two_hosts() -> Iterator[Lab]:
    with Lab(2) as lab:
        secret_file(lab.folder)
        (lab.folder / "waits.py").write_text(WAITS)
        yield lab


@contextmanager
def job(lab: Lab) -> Iterator[list[subprocess.Popen[str]]]:
    """Two ranks on each host; rank 1 keeps the others waiting until the block ends."""
    end = Path(lab.folder, "end")
    end.unlink(missing_ok=True)
    with tcp_ranks(lab, [sys.executable, lab.folder / "waits.py", end], "ab", 2) as ranks:
        assert ranks[1].stdout is not None
        assert ranks[1].stdout.readline() == "late\n"
        yield ranks
        end.touch()
        for rank in ranks:
            assert rank.wait(HANG_S) == 0


def seen_on(lab: Lab, host: str, is_so: Callable[[list[dict[str, Any]]], bool]) -> dict[str, Any]:
    """The job as `ringreduce top` shows it on the host, once its ranks are so."""
    command = [sys.executable, "-m", "ringreduce", "top", "--once", "--json", "--interval", "0.3"]
    deadline = time.monotonic() + SOON_S
    while True:
        found: dict[str, Any]
        (found,) = json.loads(lab.run(host, command).output)["jobs"]
        if is_so(found["ranks"]):
            return found
        assert time.monotonic() < deadline, found


def test_rank_0s_host_shows_all_ranks_and_another_one_its_own(lab: Lab) -> None:
    with job(lab):
        seen = seen_on(lab, "a", lambda ranks: all(ranks[rank]["missing"] for rank in (0, 2, 3)))
        assert (seen["size"], seen["hosts"]) == (4, 2)
        for rank in (0, 2, 3):
            shown = seen["ranks"][rank]
            assert (shown["state"], shown["operation"], shown["missing"]) == ("waiting", "allreduce 'after' #1", [1])
        assert [shown["hostname"] for shown in seen["ranks"]] == ["a", "a", "b", "b"]
        assert [shown["counters"]["operations"] for shown in seen["ranks"]] == [2, 1, 2, 2]
        assert 0 < seen["ranks"][3]["age_s"] < 5
        assert seen["ranks"][2]["cpu_share"] is None
        later = seen_on(lab, "a", lambda ranks: ranks[2]["counters"]["waited_s"] > 0.2)
        assert later["ranks"][2]["waited_share"] is None or later["ranks"][2]["waited_share"] > 0
        there = seen_on(lab, "b", lambda ranks: bool(ranks[2]["missing"]))["ranks"]
        assert [shown["state"] for shown in there] == ["elsewhere", "elsewhere", "waiting", "waiting"]
        assert there[0]["hostname"] is None
        assert there[2]["pid"] != 0
