"""Timelines that cannot be written, or not any more: the training goes on, and no other file is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import SOON_S
from processes import completed
from ranks import clean_environment

SUMS = """
import numpy as np, ringreduce as hvd
with hvd.init():
    hvd.allreduce(np.ones(3, np.float32), name="loss")
    print("trained", flush=True)
"""


def run(code: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, sys.executable, "-c", code],
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=SOON_S * 3,
    )


def test_a_disk_that_is_full_at_the_start_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "trace").symlink_to("/dev/full")
    ended = run(SUMS, HOROVOD_TIMELINE=str(tmp_path / "trace"))
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"ringreduce: no timeline of this process: HOROVOD_TIMELINE={tmp_path}/trace: ")
    assert line.endswith("cannot be written: No space left on device")


def test_start_timeline_raises_where_the_disk_is_full(tmp_path: Path) -> None:
    (tmp_path / "trace").symlink_to("/dev/full")
    code = f"""
import errno, ringreduce as hvd
with hvd.init():
    try:
        hvd.start_timeline({str(tmp_path / "trace")!r})
    except hvd.UnavailableError as error:
        assert isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC
        print(error)
"""
    assert run(code).stdout.endswith("cannot be written: No space left on device\n")


@pytest.mark.parametrize("name", ["No space left on device", "by another process"])
def test_no_name_makes_another_error_a_full_disk(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("no folder")
    ended = run(SUMS, RINGREDUCE_TIMELINE=str(tmp_path / name / "records"))
    assert ended.returncode == 1
    assert "InvalidArgumentError: RINGREDUCE_TIMELINE=" in ended.stderr


NOT_UTF_8 = """
import os, sys, ringreduce as hvd
with hvd.init():
    for name in (b"called\\xff", b"folder\\xff", b"taken\\xff"):
        try:
            hvd.start_timeline(os.path.join(os.fsencode(sys.argv[1]), name))
            hvd.barrier()
            hvd.stop_timeline()
        except hvd.UnavailableError as error:
            print(type(error.__cause__).__name__, ascii(str(error)))
"""


SETTINGS = """
from ringreduce import config
with hvd.init():
    config.seconds("RINGREDUCE_TIMEOUT")  # asks the job for all of its settings
    print(ascii(config.value("RINGREDUCE_TIMELINE").value))
"""


@pytest.mark.parametrize("variable", ["RINGREDUCE_TIMELINE", "HOROVOD_TIMELINE"])
def test_a_variables_path_need_not_be_utf_8(variable: str, tmp_path: Path) -> None:
    here = os.fsencode(tmp_path)
    value = os.fsdecode(here + b"/of a variable\xff")
    ended = run(SUMS + SETTINGS, **{variable: value})
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"trained\n{value!a}\n", "")
    records = b"of a variable\xff" if variable == "RINGREDUCE_TIMELINE" else b"of a variable\xff.ranks"
    assert os.listdir(here + b"/" + records) == [b"rank-0000.rr"]


def test_a_path_of_start_timeline_need_not_be_utf_8(tmp_path: Path) -> None:
    here = os.fsencode(tmp_path)
    os.mkdir(here + b"/folder\xff")
    os.makedirs(here + b"/taken\xff/rank-0000.rr")
    command = [sys.executable, "-c", NOT_UTF_8, str(tmp_path)]
    done = completed(command, env=clean_environment())
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("IsADirectoryError ")
    assert "taken\\udcff/rank-0000.rr cannot be made: Is a directory" in line
    assert set(os.listdir(here)) == {b"called\xff", b"called\xff.ranks", b"folder\xff", b"taken\xff"}
    assert os.listdir(here + b"/folder\xff") == [b"rank-0000.rr"]


def test_a_new_folder_of_records_is_writable_by_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert run(SUMS, HOROVOD_TIMELINE=str(tmp_path / "trace")).returncode == 0
    finally:
        os.umask(before)
    assert (tmp_path / "trace.ranks").stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_folder_that_another_user_has_prepared_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "trace.ranks"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    ended = run(SUMS, HOROVOD_TIMELINE=str(tmp_path / "trace"))
    assert ended.returncode == 1
    assert f"the timeline's folder {folder} belongs to another user" in ended.stderr
    assert not list(folder.iterdir())
    folder.rmdir()
    (tmp_path / "mine").mkdir()
    folder.symlink_to(tmp_path / "mine")
    os.chown(folder, 65534, 65534, follow_symlinks=False)
    assert "belongs to another user" in run(SUMS, HOROVOD_TIMELINE=str(tmp_path / "trace")).stderr
    assert not list((tmp_path / "mine").iterdir())


MANY_SUMS = """
import numpy as np, ringreduce as hvd
with hvd.init():
    for _ in range(5000):
        hvd.allreduce(np.ones(3, np.float32))
    print("trained", flush=True)
"""


def test_a_disk_that_hangs_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    """A pipe that is full stands for the file on that disk."""
    folder = tmp_path / "trace.ranks"
    folder.mkdir()
    os.mkfifo(folder / "rank-0000.rr")
    reader = os.open(folder / "rank-0000.rr", os.O_RDONLY | os.O_NONBLOCK)
    try:
        ended = run(MANY_SUMS, HOROVOD_TIMELINE=str(tmp_path / "trace"))
    finally:
        os.close(reader)
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert "the timeline's disk has not answered within 5 s" in line
