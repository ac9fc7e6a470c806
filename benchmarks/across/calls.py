"""The libraries that are timed, as one rank sees them: what to call, and a barrier."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from .pattern import Floats

Call = Callable[[], Any]


class Library(Protocol):
    """This rank of a job that is up and running."""

    rank: int
    size: int
    version: str

    def call(self, how: str, x: Floats) -> Call:
        """The sum over all ranks, in place. how: the part of a competitor's name that says which call is meant."""

    def barrier(self) -> None:
        """Passes when every rank is here."""

    def close(self) -> None:
        """Leaves the job."""


class Ringreduce:
    """ringreduce.allreduce_ on whatever connects this job. how: unnamed, named, or a codec."""

    def __init__(self) -> None:
        import ringreduce

        world = ringreduce.init()
        self._ringreduce = ringreduce
        self.rank, self.size = world.rank, world.size
        self.version = ringreduce.__version__

    def call(self, how: str, x: Floats) -> Call:
        allreduce_, op = self._ringreduce.allreduce_, self._ringreduce.Sum
        if how == "unnamed":
            return lambda: allreduce_(x, op=op)
        if how == "named":
            name = f"network {x.size}"
            return lambda: allreduce_(x, op=op, name=name)
        coded: Callable[..., Any] = allreduce_
        return lambda: coded(x, op=op, wire=how)

    def barrier(self) -> None:
        self._ringreduce.barrier()

    def close(self) -> None:
        self._ringreduce.shutdown()


class Mpi:
    """MPI_Allreduce by mpi4py, in a process of one thread: MPICH is slower in one that may have more."""

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "single"
        from mpi4py import MPI

        self._MPI, self._world = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size
        self.version = " ".join(MPI.Get_library_version().replace(",", " ").split()[:3])

    def call(self, how: str, x: Floats) -> Call:
        world, in_place = self._world, self._MPI.IN_PLACE
        return lambda: world.Allreduce(in_place, x)

    def barrier(self) -> None:
        self._world.Barrier()

    def close(self) -> None:
        self._MPI.Finalize()


class Gloo:
    """torch.distributed.all_reduce on Gloo; ranks find each other by torch's own variables."""

    def __init__(self) -> None:
        import torch
        from torch import distributed

        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        self._torch, self._distributed = torch, distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.version = f"torch {torch.__version__}"

    def call(self, how: str, x: Floats) -> Call:
        tensor, all_reduce = self._torch.from_numpy(x), self._distributed.all_reduce
        return lambda: all_reduce(tensor)

    def barrier(self) -> None:
        self._distributed.barrier()

    def close(self) -> None:
        self._distributed.destroy_process_group()


def connect(kind: str) -> Library:
    """This process as a rank of its job. kind: ringreduce, mpi or gloo."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    made: dict[str, Callable[[], Library]] = {"ringreduce": Ringreduce, "mpi": Mpi, "gloo": Gloo}
    return made[kind]()
