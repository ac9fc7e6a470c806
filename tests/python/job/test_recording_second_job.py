"""A process whose timeline by a variable ends before it does: the files stay whole, whatever the process does next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
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


def names_in(folder: Path) -> list[str]:
    """Of the operations, in a folder of records without a flaw."""
    job = Job.load(folder)
    assert job.warnings == []
    return [job.names[operation["name"]] for operation in job.operations]


ENDED_EARLY = """
import os, numpy as np, ringreduce as hvd
def life(name):
    hvd.allreduce(np.ones(3, np.float32), name=name)
with hvd.init():
    life("first")
    {ending}
for _ in range(2):
    with hvd.init():
        life("second")
"""


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ("hvd.stop_timeline()", "stop_timeline() was called"),
        ("hvd.start_timeline('another')", "another timeline has begun"),
        ("hvd.start_timeline('another'); hvd.stop_timeline()", "another timeline has begun"),
    ],
)
@pytest.mark.parametrize(
    ("variable", "folder"), [("RINGREDUCE_TIMELINE", "records"), ("HOROVOD_TIMELINE", "records.ranks")]
)
def test_a_timeline_that_was_ended_is_not_written_over(
    ending: str, why: str, variable: str, folder: str, tmp_path: Path
) -> None:
    path = tmp_path / "records"
    command = [sys.executable, "-c", ENDED_EARLY.format(ending=ending)]
    done = completed(command, env={**clean_environment(), variable: str(path)}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    what = f"its former one is there, which ended when {why}, and would be written over"
    assert done.stderr == f"ringreduce: no timeline of this process: {variable}={path}: {what}\n"
    assert names_in(tmp_path / folder) == ["first"]


def test_another_folder_gets_a_timeline_after_one_that_was_ended(tmp_path: Path) -> None:
    ending = "hvd.stop_timeline(); os.environ['RINGREDUCE_TIMELINE'] += '2'"
    command = [sys.executable, "-c", ENDED_EARLY.format(ending=ending)]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert (done.returncode, done.stderr) == (0, "")
    assert names_in(tmp_path / "records") == ["first"]
    assert names_in(tmp_path / "records2") == ["second", "second"]


START_FAILS = """
import numpy as np, os, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name="before")
    for path in {paths!r}:
        try:
            hvd.start_timeline(path)
        except hvd.UnavailableError as error:
            print(error)
    hvd.allreduce(np.ones(3, np.float32), name="after")
"""


def test_a_timeline_goes_on_where_another_one_cannot_begin(tmp_path: Path) -> None:
    taken, linked, traced = (tmp_path / name for name in ("taken", "linked", "traced.ranks"))
    for folder in (taken, linked, traced):
        folder.mkdir()
    (taken / "rank-0000.rr").mkdir()
    (linked / "rank-0000.rr").symlink_to(tmp_path / "nowhere")
    (tmp_path / "traced").symlink_to("/dev/null/traced")
    paths = ["/dev/null/records", str(taken), str(linked), str(tmp_path / "traced")]
    command = [sys.executable, "-c", START_FAILS.format(paths=paths)]
    done = completed(command, env={**clean_environment(), "RINGREDUCE_TIMELINE": str(tmp_path / "records")})
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(": ", 1)[0] for line in done.stdout.splitlines()] == [
        "the timeline's folder /dev/null/records.ranks cannot be made",
        f"the timeline's file {taken}/rank-0000.rr cannot be made",
        f"the timeline's file {linked}/rank-0000.rr cannot be made",
        f"the timeline's file {tmp_path}/traced cannot be made",
    ]
    assert names_in(tmp_path / "records") == ["before", "after"]
    assert list(traced.iterdir()) == []


ONE_RUN = """
import sys, numpy as np, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name=sys.argv[1])
"""


def ringrun(tmp_path: Path, size: int, timeline: str, *names: str) -> str:
    """What stderr says of a job each of whose ranks runs the program once for each name."""
    (tmp_path / "one_run.py").write_text(ONE_RUN)
    calls = "; ".join(f"{sys.executable} one_run.py {name}" for name in names)
    launcher = [sys.executable, "-m", "ringreduce", "run", "-np", str(size), "--timeline", timeline]
    done = completed([*launcher, "bash", "-c", calls], env=clean_environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(("timeline", "folder"), [("records", "records"), ("job.json", "job.json.ranks")])
def test_an_earlier_runs_timeline_is_said_to_be_replaced(timeline: str, folder: str, tmp_path: Path) -> None:
    line = (
        f"ringreduce: the timeline of an earlier run in {tmp_path / timeline} is replaced; "
        "give each run a place of its own to keep both\n"
    )
    assert ringrun(tmp_path, 2, timeline, "a", "b").replace("rank 0: ", "") == line
    assert names_in(tmp_path / folder) == ["b"]
    assert line in ringrun(tmp_path, 1, timeline, "c")
    for path in (tmp_path / folder).iterdir():
        path.rename(path.with_name("rank-0001.rr"))  # of a larger job, rank 0 of which ran elsewhere
    assert line in ringrun(tmp_path, 1, timeline, "d")
    assert names_in(tmp_path / folder) == ["d"]


def test_a_trace_without_records_is_said_to_be_replaced(tmp_path: Path) -> None:
    """As where Horovod has written it."""
    (tmp_path / "job.json").write_text("[]")
    assert "job.json is replaced; give each run a place of its own" in ringrun(tmp_path, 1, "job.json", "a")
    (tmp_path / "job.json").unlink()
    shutil.rmtree(tmp_path / "job.json.ranks")
    assert ringrun(tmp_path, 1, "job.json", "b") == ""


OWN_ANEW = """
import numpy as np, ringreduce as hvd
for name in ("first", "second"):
    with hvd.init():
        hvd.start_timeline("records")
        hvd.allreduce(np.ones(3, np.float32), name=name)
        hvd.start_timeline("records")
        hvd.allreduce(np.ones(3, np.float32), name=name)
"""


def test_a_process_that_replaces_its_own_timeline_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    command = [sys.executable, "-c", OWN_ANEW]
    done = completed(command, env=clean_environment(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert names_in(tmp_path / "records") == ["second"]
    done = completed(command, env=clean_environment(), cwd=tmp_path)
    assert done.stderr.count("the timeline of an earlier run in ") == done.stderr.count("\n") == 1
