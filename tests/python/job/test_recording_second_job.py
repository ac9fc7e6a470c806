"""A process that goes into a job of another size: its timeline ends before, and its files stay whole."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import completed
from ranks import clean_environment

from ringreduce.timeline.job import Job

IN_A_SMALLER_JOB = """
import os, numpy as np, ringreduce as hvd
with hvd.init() as world:
    rank = world.rank
    hvd.allreduce(np.ones(3, np.float32), name="of both")
ours = ("RINGREDUCE_", "_RINGREDUCE_", "HOROVOD_")
kept = {name: text for name, text in os.environ.items() if "TIMELINE" in name or not name.startswith(ours)}
os.environ.clear()
os.environ.update(kept)
for life in range(2):
    with hvd.init() as world:
        assert world.size == 1
        hvd.allreduce(np.ones(3, np.float32), name="alone")
"""


def test_a_timeline_ends_where_its_process_goes_into_a_job_of_another_size(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringreduce", "run", "-np", "2", sys.executable, "-c", IN_A_SMALLER_JOB]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert done.returncode == 0
    assert done.stderr.count("the timeline ends here: ") == 2
    job = Job.load(tmp_path / "records")
    assert job.warnings == []
    assert all(file.has_ended for file in job.files)
    assert [(job.names[operation["name"]], operation["rows"]) for operation in job.operations] == [("of both", 2)]
