"""ringreduce's DistributedOptimizer, or what stands for it in a framework, as a script uses it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ringreduce
from ringreduce.bench.train.modes.independent import Connected
from ringreduce.bench.train.modes.mode import Mode, Team

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.spec import Spec


class Reducing(Connected):
    """Ranks that sum their gradients; with `shards`, each updates its part of the parameters (ZeRO stage 1)."""

    shards = False

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team."""
        import ringreduce.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        settings: dict[str, Any] = {"shard_step": True} if self.shards else {}
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum, **settings)

    def api(self, framework: str) -> Any:
        """See Team."""
        return importlib.import_module(f"ringreduce.{framework}")


class Sharding(Reducing):
    """Reducing, with shard_step."""

    shards = True


class Ringreduce(Mode):
    """Under ringrun."""

    name = "ringreduce"
    team = Reducing

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return self.team(world.rank, world.size)


class RingreduceShard(Ringreduce):
    """As Ringreduce, with shard_step=True."""

    name = "ringreduce-shard"
    frameworks = ("torch",)
    team = Sharding
