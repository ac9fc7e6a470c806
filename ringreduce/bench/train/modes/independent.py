"""The communication-free bound: as many processes, each on its share of the batch, that never exchange a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ringreduce
from ringreduce.bench.train.modes.mode import Mode, Sent, Team

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.spec import Spec


class Connected(Team):
    """Ranks that communicate through ringreduce, but only between timed windows."""

    def slowest(self, seconds: float) -> float:
        """See Team."""
        return float(ringreduce.allreduce(np.array([seconds]), op=ringreduce.Max)[0])

    def sent(self) -> Sent | None:
        """See Team."""
        counters = ringreduce.stats()
        return Sent(counters["bytes_moved"], counters["bytes_on_wire"])

    def leave(self) -> None:
        """See Team."""
        ringreduce.shutdown()


class Independent(Mode):
    """Its loss is that of N trainings on N parts of the data: only the first step's can be compared."""

    name = "independent"
    is_reduced = False

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return Connected(world.rank, world.size)


class InLockstep(Connected):
    """Ranks that wait for each other in each step: before the update in torch, else before the step."""

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team."""
        optimizer.register_step_pre_hook(lambda *_: ringreduce.barrier())
        return model, optimizer

    def before_step(self) -> None:
        """See Team."""
        ringreduce.barrier()


class Lockstep(Independent):
    """What is left of the bound when all ranks wait for the slowest of each step, as who needs all gradients does."""

    name = "in-step"

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return InLockstep(world.rank, world.size)
