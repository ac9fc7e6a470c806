"""Programs that tests run to their end, and what a test asks of the kernel about a process."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from deadlines import HANG_S


def completed(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    input: str | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, in a session of its own, and returns its status and what it has said.

    The test fails, with what the program has said, if the program hangs; check: also if its status is not 0.
    """
    words = list(map(str, command))
    stdin = None if input is None else subprocess.PIPE
    with subprocess.Popen(
        words, env=env, cwd=cwd, stdin=stdin, stdout=-1, stderr=-1, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(input, timeout=HANG_S)
        except subprocess.TimeoutExpired:
            _kill_session(process)
            out, err = process.communicate()
            pytest.fail(f"{words} took longer than {HANG_S:g} s\n{out}{err}")
        except BaseException:
            _kill_session(process)
            raise
    done = subprocess.CompletedProcess(words, process.returncode, out, err)
    if check:
        assert done.returncode == 0, f"{words} ended with status {done.returncode}\n{out}{err}"
    return done


def _kill_session(leader: subprocess.Popen[str]) -> None:
    """Kills the leader's process group; a rank that has a group of its own dies with the launcher that started it."""
    os.killpg(leader.pid, signal.SIGKILL)


def ends(pid: int, timeout_s: float = HANG_S) -> bool:
    """Whether a process, not a child of this one, ends in time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], timeout_s)[0])
    finally:
        os.close(pidfd)


def asleep(pid: int, thread: int | None = None) -> None:
    """Waits until a thread of the process, by default its main one, sleeps in the kernel.

    A blocked call sleeps there between two looks.
    """
    deadline = time.monotonic() + HANG_S
    futex = 0
    while futex < 3:
        assert time.monotonic() < deadline
        with open(f"/proc/{pid}/task/{thread or pid}/wchan") as wchan:
            futex = futex + 1 if "futex" in wchan.read() else 0
        time.sleep(0.01)


def all_asleep(pid: int, looks_needed: int = 5) -> None:
    """Waits until all threads of a process sleep, for so many hundredths of a second: then a kernel waits too."""
    deadline = time.monotonic() + HANG_S
    looks = 0
    while looks < looks_needed:
        assert time.monotonic() < deadline
        states = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError):  # it has ended meanwhile
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        looks = looks + 1 if states == {"S"} else 0
        time.sleep(0.01)
