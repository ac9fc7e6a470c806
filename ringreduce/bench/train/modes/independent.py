"""The communication-free bound: as many processes, each on its share of the batch, that never exchange a gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ringreduce
from ringreduce.bench.train.modes.mode import Mode, Team


class Acquainted(Team):
    """Ranks that meet through ringreduce, but only between timed windows."""

    def slowest(self, seconds: float) -> float:
        """See Team."""
        return float(ringreduce.allreduce(np.array([seconds]), op=ringreduce.Max)[0])

    def leave(self) -> None:
        """See Team."""
        ringreduce.shutdown()


class Independent(Mode):
    """Its loss is that of N trainings on N parts of the data: only the first step's can be compared."""

    name = "independent"
    is_reduced = False

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return Acquainted(world.rank, world.size)
