"""Cases whose ranks are on the hosts of a lab (ringreduce.lab)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from .local import HERE, TAIL, measured
from .trees import Tree
from .turns import Times, TurnError

if TYPE_CHECKING:
    from ringreduce.lab.lab import Lab

RATE = "1gbit"
MPI = ("openmpi", 5)
"""What links ours in `make bench-network`, too."""
DEADLINE_S = 120.0


class Hosts:
    """calls.py under mpirun, so many ranks on each host; an order is NAME SIZE HOW."""

    def __init__(self, hosts: int, each: int = 1) -> None:
        self.hosts = hosts
        self.each = each
        self._lab: Lab | None = None
        self._numbers = count(1)

    @property
    def name(self) -> str:
        """See Group."""
        return f"{self.hosts} hosts" + (f" of {self.each} ranks" if self.each > 1 else "")

    def missing(self) -> str | None:
        """Why there can be no lab here, or None."""
        from ringreduce.lab import mpi, requirements

        if reason := requirements.missing():
            return reason
        if mpi.find(*MPI) is None:
            return f"the ranks of several hosts are linked by {' '.join(map(str, MPI))} (pip install {MPI[0]} mpi4py)"
        return None

    @contextmanager
    def up(self, trees: Sequence[Tree]) -> Iterator[None]:
        """The lab's life; missing() is None. The trees are where they are on all hosts, also below /tmp."""
        from ringreduce.lab.lab import Lab

        with Lab(self.hosts, RATE, shared=[HERE, *{tree.path for tree in trees}]) as lab:
            self._lab = lab
            try:
                yield
            finally:
                self._lab = None

    def run(self, tree: Tree, orders: Sequence[str]) -> Times:
        """See Group."""
        from ringreduce.lab import mpi

        lab, link = self._lab, mpi.find(*MPI)
        assert lab is not None
        assert link is not None
        file = lab.folder / f"figures-{next(self._numbers)}.json"
        program = [sys.executable, str(HERE / "calls.py"), *orders, "--file", str(file)]
        env = {"PYTHONPATH": tree.environ()["PYTHONPATH"]}
        try:
            done = lab.mpirun(link, self.each, program, env=env, timeout_s=DEADLINE_S)
        except TimeoutError as error:
            raise TurnError(str(error)[-TAIL:]) from None
        said = done.output[-TAIL:].strip()
        if done.status != 0:
            raise TurnError(f"exit status {done.status}\n{said}")
        try:
            return measured(json.loads(file.read_text()))
        except (OSError, ValueError) as error:
            raise TurnError(f"exit status 0, but {error}\n{said}") from None
