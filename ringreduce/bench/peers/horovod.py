"""Horovod, where somebody has managed to build it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.peers.called import Called
from ringreduce.bench.peers.cell import Absent, Cell, Peer
from ringreduce.bench.peers.worker import Endpoint

COLLECTIVES = ("allreduce", "broadcast", "barrier")


def find() -> list[Peer | Absent]:
    """Horovod for torch, if it is installed. Does not import it."""
    try:
        version = metadata.version("horovod")
    except metadata.PackageNotFoundError:
        return [Absent("horovod", "its last release (0.28.1, 2023) does not compile against torch >= 2.1")]
    return [Called("horovod", version, "horovod", _launch, COLLECTIVES, ("sum", "min", "max", "product"))]


def _launch(cell: Cell) -> tuple[list[str], dict[str, str]]:
    return ["horovodrun", "-np", str(cell.ranks)], {}


class _Horovod:
    def __init__(self) -> None:
        import torch
        from horovod import torch as hvd

        hvd.init()
        self.torch, self.hvd = torch, hvd
        self.rank: int = hvd.rank()
        self.size: int = hvd.size()

    def operation(self, collective: str, src: NDArray[Any], dst: NDArray[Any], op: str) -> Callable[[], Any]:
        x, hvd = self.torch.from_numpy(src), self.hvd
        reduce_op = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}[op]
        return {
            "allreduce": (
                (lambda: hvd.allreduce_(x, name="bench", op=reduce_op))
                if dst is src
                else (lambda: hvd.allreduce(x, name="bench", op=reduce_op))
            ),
            "broadcast": lambda: hvd.broadcast_(x, 0, name="bench"),
            "barrier": self.barrier,
        }[collective]

    def barrier(self) -> None:
        self.hvd.barrier()

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        tensor = self.torch.from_numpy(values.copy())
        return np.asarray(self.hvd.allreduce(tensor, name="largest", op=self.hvd.Max).numpy())

    def close(self) -> None:
        self.hvd.shutdown()


def connect() -> Endpoint:
    """This process as a rank that horovodrun has started."""
    return _Horovod()
