"""A link between hosts that is slower than the others: rank 0 names it, and no rank."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import HANG_S
from tcp_jobs import secret_file

from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks
from ringreduce.lab.requirements import missing
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import analyse
from ringreduce.timeline.job import Job

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

STEPS = """
import os
import sys
import time
import numpy as np
import ringreduce as rr

rr.init()
x = np.ones(1_500_000, np.float32)
is_over = np.zeros(1)
end_s = time.monotonic() + float(sys.argv[2])
while not is_over[0]:
    rr.allreduce(x, name="gradients")
    mine = os.path.exists(sys.argv[1]) or time.monotonic() > end_s
    is_over = rr.allreduce(np.full(1, mine, np.int32), name="over", op=rr.Max)
report = rr.report()
print([report[name] for name in ("busiest_link_from", "busiest_link_to", "busiest_link_share")], flush=True)
"""


@pytest.fixture(name="lab", scope="module")
def lab_of_four_hosts() -> Iterator[Lab]:
    with Lab(4, "400mbit") as lab:
        secret_file(lab.folder)
        (lab.folder / "steps.py").write_text(STEPS)
        yield lab


def test_the_slow_link_is_named_and_no_rank(lab: Lab) -> None:
    lab.shape("c", "100mbit")
    end = Path(lab.folder, "end")
    command = [sys.executable, lab.folder / "steps.py", end, str(HANG_S / 2)]
    records = Path(lab.folder, "records")
    with tcp_ranks(lab, command, "abcd", 1, {"RINGREDUCE_TIMELINE": str(records)}) as ranks:
        assert ranks[0].stdout is not None
        warning = ""
        for warning in ranks[0].stdout:
            if "is slow" in warning:
                break
        end.touch()
        outputs = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
    told = (
        r"the link from host c to host d is slow: it carried \d+\.\d MB/s while it was busy, \d+ % of the last \d+ s; "
        r"(the slowest other one \d+\.\d MB/s|no other one was busy)"
    )
    assert re.search(told, warning), warning
    assert not any("is slow" in output for output in outputs), outputs
    # On a machine that is full a rank may wait for a core, and is named with that.
    named = [line for output in outputs for line in output.splitlines() if "is late" in line]
    assert all("its cores are taken" in line for line in named), named
    found = analyse(Job.load(records))
    assert [(link.from_host, link.to_host) for link in found.links if link.is_slow] == [("c", "d")], found.links
    assert any("The link from host c to host d is slow" in sentence for sentence in conclusions(found))
    from_host, to_host, share = json.loads(outputs[0].splitlines()[-1])
    assert (from_host, to_host) == (2, 3)
    assert share > 0.1
