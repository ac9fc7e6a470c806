"""init_method="ringreduce://": the rendezvous of a job that ringrun, mpirun or srun started.

Such launchers tell a rank its place, but set none of the variables that torch's env:// reads. Here the ranks join the
job as hvd.init() does, and agree over it on a TCPStore, which torch then uses as any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ringreduce
from ringreduce.errors import InvalidArgumentError
from ringreduce.job import collective_json

LOOPBACK = "127.0.0.1"  # all ranks are on this host


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """What torch calls for the URL: yields (store, rank, size), once. Collective over the job.

    Calls ringreduce.init(), and leaves the job running: hvd's functions may be used beside torch's.

    Raises:
        InvalidArgumentError: a rank or world_size other than the job's was given.
    """
    world = ringreduce.init()
    if rank not in (-1, world.rank) or world_size not in (-1, world.size):
        raise InvalidArgumentError(
            f"init_process_group(init_method={url!r}) was given rank {rank} of {world_size}, but this is rank "
            f"{world.rank} of {world.size}; leave both out"
        )
    store: Any = None
    if world.rank == 0:
        store = TCPStore(LOOPBACK, 0, world.size, True, timeout, wait_for_workers=False)
    ports = collective_json.allgather_json(
        ringreduce.global_process_set.group, "torch.store", store.port if store else None
    )
    if store is None:
        store = TCPStore(LOOPBACK, ports[0], world.size, False, timeout, wait_for_workers=False)
    yield store, world.rank, world.size
    raise RuntimeError("a second rendezvous at the same URL is not possible; call init_process_group() again")
