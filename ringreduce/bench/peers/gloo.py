"""Gloo, as torch.distributed calls it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.peers.called import Called
from ringreduce.bench.peers.cell import Absent, Cell, Peer
from ringreduce.bench.peers.worker import Endpoint
from ringreduce.job.environment import detect
from ringreduce.job.tcp.own_address import interface_to
from ringreduce.job.tcp.rendezvous import parse_address
from ringreduce.launch.python import run_module

COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "barrier")


def find() -> list[Peer | Absent]:
    """Gloo, if torch is here. Does not import torch."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return [Absent("gloo", "pip install torch")]
    ops = ("sum", "min", "max", "product")
    return [Called("gloo", f"(torch {version})", "gloo", _launch, COLLECTIVES, ops, several_hosts=True)]


def _launch(cell: Cell) -> tuple[list[str], dict[str, str]]:
    if cell.hosts:
        ringrun = run_module("ringreduce.launch.ringrun", "-np", str(cell.ranks), *cell.ringrun)
        return [*ringrun, "--bind", cell.bind, "--no-tag-output"], {}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*torchrun, "--nproc-per-node", str(cell.ranks), "--no-python"], {}


class _Gloo:
    def __init__(self) -> None:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo", **_place())
        self.torch, self.distributed = torch, distributed
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()

    def operation(self, collective: str, src: NDArray[Any], dst: NDArray[Any], op: str) -> Callable[[], Any]:
        x, y, group = self.torch.from_numpy(src), self.torch.from_numpy(dst), self.distributed
        if collective == "allreduce":
            reduce_op = getattr(group.ReduceOp, op.upper())
            if dst is src:
                return lambda: group.all_reduce(x, reduce_op)

            def out_of_place() -> None:
                y.copy_(x)
                group.all_reduce(y, reduce_op)

            return out_of_place
        return {
            "allgather": lambda: group.all_gather_into_tensor(y, x),
            "broadcast": lambda: group.broadcast(x, 0),
            "alltoall": lambda: group.all_to_all_single(y, x),
            "barrier": lambda: group.barrier(),
        }[collective]

    def barrier(self) -> None:
        self.distributed.barrier()

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        tensor = self.torch.from_numpy(values.copy())
        self.distributed.all_reduce(tensor, self.distributed.ReduceOp.MAX)
        return np.asarray(tensor.numpy())

    def close(self) -> None:
        self.distributed.destroy_process_group()


def _place() -> dict[str, Any]:
    """What ringrun has told a rank, as torch takes it; nothing under torchrun. Says which interface Gloo is to use."""
    if "RINGREDUCE_RANK" not in os.environ:
        return {}
    address = os.environ["RINGREDUCE_ADDRESS"]
    host, _ = parse_address(address, "RINGREDUCE_ADDRESS=")
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = interface_to(host, "gloo")
    place = detect(network=True)
    return {"init_method": f"tcp://{address}", "rank": place.rank, "world_size": place.size}


def connect() -> Endpoint:
    """This process as a rank of the group that torchrun, or ringrun over hosts, has started."""
    return _Gloo()
