"""torch's DistributedDataParallel over Gloo, on the settings that suit it best here."""

from __future__ import annotations

import inspect
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ringreduce import state
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.job import environment
from ringreduce.job.tcp.own_address import interface_to

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.spec import Spec


class Replicas(Team):
    """DDP averages over the ranks; loss_factor turns that into a sum."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.loss_factor = float(size)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team. Views spare DDP a copy; nobody else here broadcasts batch norm's statistics in each step."""
        from torch.nn.parallel import DistributedDataParallel

        known = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # torch renamed it
        settings: dict[str, Any] = {"gradient_as_bucket_view": True, buffers: False}
        return DistributedDataParallel(model, **settings), optimizer

    def slowest(self, seconds: float) -> float:
        """See Team."""
        import torch
        from torch import distributed

        value = torch.tensor([seconds], dtype=torch.float64)
        distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
        return value.item()

    def leave(self) -> None:
        """See Team."""
        from torch import distributed

        distributed.destroy_process_group()


class DdpGloo(Mode):
    """Under ringrun, met as the ranks of ringreduce.torch meet, wherever they are."""

    name = "ddp-gloo"
    frameworks = ("torch",)
    backend = "gloo"

    def join(self, spec: Spec) -> Team:
        """See Mode. Nothing of ringreduce's own job is left when Gloo trains."""
        from torch import distributed

        import ringreduce.torch  # registers "ringreduce://" and the backend of that name

        world = ringreduce.init()
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            os.environ["GLOO_SOCKET_IFNAME"] = _interface()
        distributed.init_process_group(
            self.backend, init_method="ringreduce://", timeout=timedelta(seconds=spec.timeout_s)
        )
        ringreduce.shutdown()
        return Replicas(world.rank, world.size)


def _interface() -> str:
    """By which the other ranks reach this one: the loopback if all are here, whatever this host's name resolves to."""
    reached = state.require().reached
    if reached is None or not environment.spans_hosts(environment.detect(network=True)):
        return "lo"
    return interface_to(reached.ip, DdpGloo.name)
