"""ringreduce as a peer among peers: the bench command itself, one size at a time."""

from __future__ import annotations

from dataclasses import dataclass

import ringreduce
from ringreduce.bench.peers.cell import Cell, Job
from ringreduce.launch.python import run_module


@dataclass(frozen=True)
class Ours:
    """ringreduce at one level, on one kind of memory."""

    level: str
    buffers: str

    @property
    def name(self) -> str:
        """See Peer."""
        return f"ringreduce {self.buffers}"

    @property
    def facts(self) -> dict[str, str]:
        """See Peer; its rows say the same."""
        return {
            "library": "ringreduce",
            "version": ringreduce.__version__,
            "level": self.level,
            "buffers": self.buffers,
        }

    def unsupported(self, cell: Cell) -> str | None:
        """See Peer."""
        return None

    def job(self, cell: Cell) -> Job:
        """See Peer."""
        what = [cell.collective, "-np", str(cell.ranks), "--sizes", str(cell.nbytes), "--dtype", cell.dtype]
        where = ["--op", cell.op, "--buffers", self.buffers, "--level", self.level, "--json", "-"]
        paces_itself = cell.hosts and cell.is_paced
        iters = [] if paces_itself else ["--iters", str(cell.iters)]
        warmup = [] if paces_itself and not cell.is_warmup_given else ["--warmup", str(cell.warmup)]
        how = ["--bind", cell.bind, *cell.ringrun, *iters, *warmup]
        flags = ["--check" if cell.check else "--no-check", "--in-place" if cell.in_place else "--no-in-place"]
        return Job(run_module("ringreduce.bench", *what, *where, *how, *flags))
