"""A timeline in a place that another user has prepared touches no other file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import SOON_S
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
