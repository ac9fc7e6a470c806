"""Who is compared: ringreduce in its two kinds of memory, and every MPI. Each measurement is a job of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mpis import Mpi

from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.measure import SMALL_NBYTES

TIMEOUT_S = 120


class Lane(Protocol):
    """One column of the comparison."""

    def measure(self, nbytes: int, check: bool) -> dict[str, Any]:
        """One row, as in the JSON of `ringreduce bench`, plus "lane" (the column's name)."""


@dataclass(frozen=True)
class Ours:
    """`ringreduce bench` with these options."""

    name: str
    ranks: int
    cores: int
    options: tuple[str, ...]

    def measure(self, nbytes: int, check: bool) -> dict[str, Any]:
        """See Lane. Wrong results are rows, not exceptions."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "row.json")
            iters, warmup = calls(nbytes, self.ranks, self.cores)
            if "python" in self.options:
                iters = min(iters, 5000)
            what = ["allreduce", "-np", str(self.ranks), "--sizes", str(nbytes), *self.options]
            how = ["--iters", str(iters), "--warmup", str(warmup), "--check" if check else "--no-check"]
            _output([sys.executable, "-m", "ringreduce.bench", *what, *how, "--json", str(file)], may_fail=check)
            row: dict[str, Any] = json.loads(file.read_text())["results"][0]
        return {"lane": self.name, **row}


@dataclass(frozen=True)
class Theirs:
    """benchmarks/mpi_allreduce.c under one MPI."""

    mpi: Mpi
    program: Path
    ranks: int
    cores: int

    @property
    def name(self) -> str:
        """The column's heading."""
        return self.mpi.name

    def measure(self, nbytes: int, check: bool) -> dict[str, Any]:
        """See Lane."""
        iters, warmup = calls(nbytes, self.ranks, self.cores)
        command = [*self.mpi.command(self.ranks, self.cores), str(self.program), str(nbytes), str(iters), str(warmup)]
        said = json.loads(_output(command, environ=self.mpi.environ()).splitlines()[-1])
        algbw = nbytes / said["p50"] * 1e-3
        return {
            "lane": self.name,
            "library": self.mpi.library,
            "version": self.mpi.version,
            "level": "c",
            "collective": "allreduce",
            "ranks": self.ranks,
            "nbytes": nbytes,
            "count": nbytes // 4,
            "dtype": "float32",
            "op": "sum",
            "in_place": True,
            "buffers": "private",
            "algorithm": " ".join(self.mpi.options) or "default",
            "time_us": {key: said[key] for key in ("min", "p50", "p99")},
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * COLLECTIVES["allreduce"].bus(self.ranks),
            "wrong": said["wrong"],
            "fraction_of_limit": None,
        }


def lanes(ranks: int, cores: int, found: list[Mpi]) -> list[Lane]:
    """Everyone who is timed at every size."""
    ours = [Ours(buffers, ranks, cores, ("--buffers", buffers)) for buffers in ("registered", "private")]
    return [*ours, *(Theirs(mpi, mpi.build(), ranks, cores) for mpi in found)]


def small(cores: int) -> list[Lane]:
    """Ours alone, 8 bytes: from Python on two ranks, and with more ranks than cores."""
    return [
        Ours(f"{level}, {ranks} ranks", ranks, cores, ("--level", level, "--no-in-place"))
        for level, ranks in (("python", 2), ("python", 4), ("python", 8), ("c", 4), ("c", 8))
    ]


def calls(nbytes: int, ranks: int, cores: int) -> tuple[int, int]:
    """(timed, warm-up) calls, the same for everyone: about a second at the slowest."""
    if nbytes <= SMALL_NBYTES:
        return (100_000, 1000) if ranks <= cores else (4000, 100)
    timed = max(10, min(1000, (512 << 20) // nbytes))
    return timed, max(6, timed // 10)  # MPICH takes its fast path after five calls


def _output(command: list[str], environ: dict[str, str] | None = None, may_fail: bool = False) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ)
    if done.returncode != 0 and not (may_fail and done.returncode == 1):
        sys.exit(f"{' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout
