"""torch's DistributedDataParallel over Gloo, on the settings that suit it best here."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.job import environment

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


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
    """Started and bound by ringrun, met through a file: no port can be taken by another."""

    name = "ddp-gloo"
    frameworks = ("torch",)
    backend = "gloo"

    def environ(self) -> dict[str, str]:
        """See Mode. All ranks are here, whatever this host's name resolves to."""
        return {"GLOO_SOCKET_IFNAME": "lo"}

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        from torch import distributed

        place = environment.detect()
        store = f"file://{folder}/{self.backend}-store"
        wait = timedelta(seconds=timeout_s)
        distributed.init_process_group(
            self.backend, init_method=store, rank=place.rank, world_size=place.size, timeout=wait
        )
        return Replicas(place.rank, place.size)
