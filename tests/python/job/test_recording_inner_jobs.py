"""Jobs that a rank starts, and its timeline by a variable: they leave its folder alone, and say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import completed
from ranks import clean_environment

from ringreduce.job import inheritance, recording
from ringreduce.launch.command_line import options
from ringreduce.launch.remote.launch import orders
from ringreduce.timeline.job import Job

TRAIN = """
import numpy as np, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name="inner")
"""
BY_RUN = """
def train():
    exec(TRAIN)
hvd.run(train, np=4)
"""
BY_RINGRUN = """
ringrun = [sys.executable, "-m", "ringreduce", "run"]
subprocess.run([*ringrun, "-np", "4", *OPTIONS, sys.executable, "-c", TRAIN], check=True)
"""
OUTER = """
import subprocess, sys, numpy as np, ringreduce as hvd
TRAIN, OPTIONS = {train!r}, {options!r}
with hvd.init() as world:
    if world.rank == 0:
        exec({inner!r})
    hvd.allreduce(np.ones(3, np.float32), name="outer")
"""


def outer(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Two ranks with a timeline in tmp_path / "records"."""
    command = [sys.executable, "-m", "ringreduce", "run", "-np", "2", sys.executable, "-c", code]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert done.returncode == 0, done.stderr
    return done


def names_in(folder: Path) -> list[tuple[str, int]]:
    """The operations by name, with their ranks, of records without a flaw."""
    job = Job.load(folder)
    assert job.warnings == []
    return [(job.names[operation["name"]], operation["rows"]) for operation in job.operations]


@pytest.mark.parametrize("inner", [BY_RUN, BY_RINGRUN])
def test_a_job_that_a_rank_starts_has_no_timeline(inner: str, tmp_path: Path) -> None:
    done = outer(tmp_path, OUTER.format(train=TRAIN, options=[], inner=inner))
    assert done.stderr.count("no timeline of this process: RINGREDUCE_TIMELINE=") == 4
    assert sorted(path.name for path in (tmp_path / "records").iterdir()) == ["rank-0000.rr", "rank-0001.rr"]
    assert names_in(tmp_path / "records") == [("outer", 2)]


def test_a_job_that_a_rank_starts_has_a_timeline_in_another_folder(tmp_path: Path) -> None:
    own = ["--timeline", str(tmp_path / "own")]
    done = outer(tmp_path, OUTER.format(train=TRAIN, options=own, inner=BY_RINGRUN))
    assert done.stderr == ""
    assert names_in(tmp_path / "records") == [("outer", 2)]
    assert names_in(tmp_path / "own") == [("inner", 4)]


LEAVES_A_CHILD = """
import subprocess, sys, numpy as np, ringreduce as hvd
hvd.init()
hvd.allreduce(np.ones(3, np.float32), name="outer")
subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()\\n" + {train!r}], stdin=subprocess.PIPE)
"""


def test_a_process_that_outlives_the_rank_leaves_its_files_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_A_CHILD.format(train=TRAIN)]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert done.stderr.startswith("ringreduce: no timeline of this process: RINGREDUCE_TIMELINE=")
    assert names_in(tmp_path / "records") == [("outer", 1)]


FORKS = """
import os, sys, numpy as np, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name="outer")
    hvd.stop_timeline()
if (child := os.fork()) == 0:
    for _ in range(2):
        with hvd.init(rank=0, size=1):
            hvd.allreduce(np.ones(3, np.float32), name="inner")
    sys.exit()
os.waitpid(child, 0)
"""


def test_a_forked_child_says_once_that_it_has_none(tmp_path: Path) -> None:
    done = completed(
        [sys.executable, "-c", FORKS],
        env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("ringreduce: no timeline of this process: RINGREDUCE_TIMELINE=")
    assert names_in(tmp_path / "records") == [("outer", 1)]


BEGINS_ANEW = """
import os, sys, numpy as np, ringreduce as hvd
hvd.init()
hvd.allreduce(np.ones(3, np.float32), name=sys.argv[1])
if sys.argv[1] == "first":
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], "second"])
"""


def test_a_process_that_executes_itself_has_its_timeline_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGINS_ANEW, "first"]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert (done.returncode, done.stderr) == (0, "")
    assert names_in(tmp_path / "records") == [("second", 1)]


def test_ringrun_within_a_rank_takes_its_mark_to_other_hosts() -> None:
    environ = {recording.VARIABLE: "4711.1 /tmp/records", inheritance.VARIABLE: "4711.1 ringrun 0/2 a"}
    told = orders(options.read(["-H", "elsewhere:2", "true"], "ringrun"), environ)
    assert told.variables == {recording.VARIABLE: "4711.1 /tmp/records"}
