"""Open MPI and MPICH, called from C (collectives.c): Debian's, the wheels', whatever mpicc is on PATH."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache as cache_result
from pathlib import Path

from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.peers.cell import Absent, Cell, Job, Peer
from ringreduce.launch.mpi import installations
from ringreduce.launch.mpi.installations import LIBRARIES, Installation
from ringreduce.launch.storage import cache

SOURCE = Path(__file__).with_name("collectives.c")
__all__ = ["LIBRARIES", "Mpi", "find"]
XHC = ("--mca", "coll_xhc_priority", "40")  # off by default; said to be Open MPI 5's best within a host
MOST = 2**31 - 1  # elements
COMPILE_TIMEOUT_S = 300


@dataclass(frozen=True)
class Mpi:
    """One MPI and one way to run it."""

    installation: Installation
    options: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """openmpi or mpich."""
        return self.installation.library

    @property
    def version(self) -> str:
        """The installation's."""
        return self.installation.version

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
        if cell.hosts and self.options:
            return "xhc works within a host"
        if cell.dtype != "float32" and cell.collective != "barrier":
            return "collectives.c is of float32 only"
        if cell.op != "sum" and COLLECTIVES[cell.collective].reduces:
            return "collectives.c reduces by sum only"
        if cell.count > MOST:
            return f"MPI counts elements by an int, {MOST} at most"
        return None

    def job(self, cell: Cell) -> Job:
        """See Peer."""
        what = [cell.collective, str(cell.count), "1" if cell.in_place else "0"]
        seconds = [str(cell.budget_s), str(cell.warmup_budget_s)]
        how_often = [str(cell.iters), str(cell.warmup)]
        cpus = ";".join(",".join(map(str, sorted(share))) for share in cell.shares)
        command = [*self.launch(cell), str(self.build()), *what, *how_often, *seconds, str(cell.ranks), cpus]
        return Job(command, self.installation.environ())

    def launch(self, cell: Cell) -> list[str]:
        """The start of the command line, with the settings that suit this MPI best: giving way where ranks outnumber
        cores. On one host ranks bind themselves: mpirun would bind them to cores that this process may not use. On
        several it binds them, unless nobody is to be bound."""
        mpirun, *rest = self.installation.launch(
            cell.ranks,
            oversubscribed=cell.oversubscribed,
            hosts=cell.hosts,
            is_bound=cell.is_bound and bool(cell.hosts),
            on_hwthreads=cell.on_hwthreads,
        )
        return [mpirun, *self.options, *rest]

    def build(self) -> Path:
        """collectives.c compiled with this MPI's own compiler wrapper, once. Raises CalledProcessError."""
        assert self.installation.mpicc is not None
        # Of this ringreduce, and for this installation: the program has the path of its library in it.
        mpicc = Path(self.installation.mpicc).resolve()
        made_of = f"{mpicc} {mpicc.stat().st_mtime_ns} ".encode() + SOURCE.read_bytes()
        digest = hashlib.sha256(made_of).hexdigest()[:16]
        program = cache("bench") / f"collectives-{self.library}-{self.version}-{digest}"
        if not program.exists():
            draft = program.with_suffix(f".{os.getpid()}")
            command = [self.installation.mpicc, "-O3", "-o", str(draft), str(SOURCE)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=COMPILE_TIMEOUT_S)
            draft.rename(program)
        return program


@cache_result
def find(library: str) -> list[Peer | Absent]:
    """Every MPI of this library that can be compiled for and run; one Absent when there is none.

    Looked for once: mpi4py asks for the same ones.
    """
    found: dict[str, Peer] = {}
    for one in installations.find(library):
        if one.mpicc is None:
            continue
        candidates = [Mpi(one)]
        if library == "openmpi" and int(one.version.partition(".")[0]) >= 5:
            candidates.append(Mpi(one, XHC))
        for mpi in candidates:
            if _builds(mpi):
                found[mpi.name] = mpi
    return list(found.values()) or [Absent(library, f"{installations.advice(library)}; and a C compiler")]


def _builds(mpi: Mpi) -> bool:
    try:
        mpi.build()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"# {mpi.name} is left out: {error}", file=sys.stderr)
        return False
    return True
