"""What peers that are called from Python have in common, seen from outside."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass

from ringreduce.bench.peers.cell import Cell, Job
from ringreduce.launch.python import run_module

Launch = Callable[[Cell], tuple[list[str], dict[str, str]]]
"""The launcher's command line for a cell, up to the program, and its additions to the environment."""


@dataclass(frozen=True)
class Called:
    """A library whose users call it from Python: worker.py under the library's own launcher."""

    library: str
    version: str
    module: str
    launch: Launch
    collectives: tuple[str, ...]
    ops: tuple[str, ...] = ("sum",)
    dtypes: tuple[str, ...] = ("float32", "float64", "int32", "int64")
    several_hosts: bool = False
    """Whether launch() can start it on the cell's hosts."""

    @property
    def name(self) -> str:
        """See Peer."""
        return f"{self.library} {self.version}"

    @property
    def facts(self) -> dict[str, str]:
        """See Peer."""
        facts = {"library": self.library, "version": self.version, "level": "python"}
        return {**facts, "buffers": "private", "algorithm": "default"}

    def unsupported(self, cell: Cell) -> str | None:
        """See Peer."""
        if cell.hosts and not self.several_hosts:
            return f"{self.library} is measured on one host here"
        if len(cell.hosts) == 1:
            return f"{self.library} on one other host is not measured from here: run the command there"
        if cell.collective not in self.collectives:
            return f"{self.library} has no {cell.collective}, or none is measured here"
        if cell.collective in ("allreduce", "reducescatter") and cell.op not in self.ops:
            return f"{self.library} has no {cell.op}, or none is measured here"
        return None if cell.dtype in self.dtypes else f"{self.library}: {cell.dtype} is not measured here"

    def job(self, cell: Cell) -> Job:
        """See Peer."""
        launcher, environ = self.launch(cell)
        text = json.dumps(dataclasses.asdict(cell))
        program = run_module("ringreduce.bench.peers.worker", self.module, text)
        return Job([*launcher, *program], {"OMP_NUM_THREADS": "1", **environ})
