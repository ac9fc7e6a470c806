"""init_method="ringreduce://": the rendezvous of a job that ringrun, mpirun or srun started.

Such launchers tell a rank its place, but set none of the variables that torch's env:// reads. Here the ranks join the
job as hvd.init() does, and agree over it on a TCPStore, which torch then uses as any other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ringreduce
from ringreduce import state
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.job import collective_json
from ringreduce.job.handshake import told_error
from ringreduce.job.listening_ports import first_free
from ringreduce.job.own_address import reachable_ip
from ringreduce.job.tcp_rendezvous import own_ports

LOOPBACK = "127.0.0.1"
SECRET_NBYTES = 32


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """What torch calls for the URL: yields (store, rank, size), once. Collective over the job.

    Calls ringreduce.init(), and leaves the job running: hvd's functions may be used beside torch's.

    Raises:
        InvalidArgumentError: a rank or world_size other than the job's was given; rank 0 has no address that the other
            hosts reach.
    """
    world = ringreduce.init()
    if rank not in (-1, world.rank) or world_size not in (-1, world.size):
        raise InvalidArgumentError(
            f"init_process_group(init_method={url!r}) was given rank {rank} of {world_size}, but this is rank "
            f"{world.rank} of {world.size}; leave both out"
        )
    me = f"[rendezvous] rank {world.rank}/{world.size}"
    store: Any = None
    mine: dict[str, Any] = {}
    failure: Exception | None = None
    if world.rank == 0:
        try:
            ip, secret = _place_of_store(me)
            store = first_free(own_ports(), ip, lambda port: _store_at(ip, port, world.size, timeout))
            mine = {"ip": ip, "port": store.port, "secret": secret}
        except (Error, RuntimeError, OSError) as error:  # the latter two from torch
            failure, mine = error, {"error": str(error), "kind": type(error).__name__}
    told = collective_json.allgather_json(ringreduce.global_process_set.group, "torch.store", mine)[0]
    if failure is not None:
        raise failure
    if "error" in told:
        raise told_error(told["kind"], f"{me}: told by rank 0: {told['error']}")
    if told["secret"]:
        state.require().reached = state.Reached(told["ip"], bytes.fromhex(told["secret"]))
    if store is None:
        store = TCPStore(told["ip"], told["port"], world.size, False, timeout, wait_for_workers=False)
    yield store, world.rank, world.size
    raise RuntimeError("a second rendezvous at the same URL is not possible; call init_process_group() again")


def _store_at(ip: str, port: int, size: int, timeout: timedelta) -> Any:
    """A store that listens there. Raises OSError where another process does, as torch says in words only."""
    try:
        return TCPStore(ip, port, size, True, timeout, wait_for_workers=False)
    except RuntimeError as error:
        if "EADDRINUSE" in str(error) or os.strerror(errno.EADDRINUSE).lower() in str(error).lower():
            raise OSError(errno.EADDRINUSE, str(error)) from error
        raise


def _place_of_store(me: str) -> tuple[str, str]:
    """Rank 0's address, and a secret for groups on several hosts where the job has none that it need not tell: a job
    that MPI connects, and MPI carries it."""
    job = state.require()
    if len(set(job.hosts)) == 1:
        return LOOPBACK, ""
    if job.reached is not None:
        return job.reached.ip, ""
    return reachable_ip([], me), os.urandom(SECRET_NBYTES).hex()
