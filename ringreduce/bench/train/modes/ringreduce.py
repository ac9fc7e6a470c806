"""ringreduce's DistributedOptimizer, as a script uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import ringreduce
from ringreduce.bench.train.modes.independent import Acquainted
from ringreduce.bench.train.modes.mode import Mode, Team

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Reducing(Acquainted):
    """Ranks that sum their gradients."""

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team."""
        import ringreduce.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)


class Ringreduce(Mode):
    """Under ringrun."""

    name = "ringreduce"

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return Reducing(world.rank, world.size)
