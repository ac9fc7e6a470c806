"""Everyone that `ringreduce bench --vs` compares with, each behind the interface of cell.py, each a file of its own.

An adapter finds its library, says how to start one measurement with the library's own launcher, and where the library
is called from Python also gives the worker its calls. find() lists who is here, and for who is not, how to get it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ringreduce.bench.peers import gloo, horovod, mpi, mpi4py_, nccl
from ringreduce.bench.peers.cell import Absent, Peer
from ringreduce.errors import InvalidArgumentError

Finder = Callable[[], list[Peer | Absent]]

FINDERS: dict[str, Finder] = {
    "gloo": gloo.find,
    "openmpi": lambda: mpi.find("openmpi"),
    "mpich": lambda: mpi.find("mpich"),
    "mpi4py": mpi4py_.find,
    "horovod": horovod.find,
    "nccl": nccl.find,
}


def find(names: Sequence[str]) -> tuple[list[Peer], list[Absent]]:
    """The peers of these names that can be run here, and those that cannot.

    Raises:
        InvalidArgumentError: a name that no adapter has.
    """
    here: list[Peer] = []
    absent: list[Absent] = []
    for name in dict.fromkeys(names):
        if name not in FINDERS:
            raise InvalidArgumentError(f"ringreduce bench --vs: no peer {name!r}; there are {', '.join(FINDERS)}")
        for found in FINDERS[name]():
            if isinstance(found, Absent):
                absent.append(found)
            else:
                here.append(found)
    return here, absent
