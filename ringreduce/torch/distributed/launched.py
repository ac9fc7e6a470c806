"""init_method="ringreduce://": the rendezvous of a job that ringrun, mpirun or srun started.

Such launchers tell a rank its place, but set none of the variables that torch's env:// reads. Here the ranks join the
job as hvd.init() does, and agree over it on a TCPStore, which torch then uses as any other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import ringreduce
from ringreduce import config, state
from ringreduce.errors import InvalidArgumentError
from ringreduce.job import collective_json, environment, store_rendezvous
from ringreduce.job.handshake import told_error
from ringreduce.job.tcp.job import ERROR_CHARS, LOOPBACK
from ringreduce.job.tcp.listening_ports import listening
from ringreduce.job.tcp.own_address import reachable_ip
from ringreduce.job.tcp.rendezvous import own_ports

SECRET_NBYTES = 32
SPARE_CALLERS = 64  # beside one for each rank, in the queue of the store's socket


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, timeout: timedelta = timedelta(minutes=30), **_: Any
) -> Iterator[tuple[Any, int, int]]:
    """What torch calls for the URL: yields (store, rank, size), once. Collective over the job.

    Calls ringreduce.init(), and leaves the job running: hvd's functions may be used beside torch's. Sets RANK,
    WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE where the launcher has set none of them: Accelerate and Transformers
    look at these alone, and would train one model on each rank.

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
    place: dict[str, Any] = {}
    failure: Exception | None = None
    if world.rank == 0:
        try:
            store, place = _opened(world.size, timeout, me)
        except Exception as error:  # of torch, too: all ranks have to hear it
            failure = error
    told = _gathered("place", place | _described(failure))[0]
    if failure is None and "error" not in told and store is None:
        try:
            store = TCPStore(told["ip"], told["port"], world.size, False, timeout, wait_for_workers=False)
        except Exception as error:
            failure = error
    errors = _gathered("store", _described(failure))
    if failure is not None:
        raise failure
    for other, one in enumerate(errors):
        if one:
            raise told_error(one["kind"], f"{me}: told by rank {other}: {one['error']}")
    if told["secret"]:
        store_rendezvous.remember_secret(bytes.fromhex(told["secret"]))
    environment.tell_torch(world.rank, world.size, ringreduce.local_rank(), ringreduce.local_size(), os.environ)
    yield store, world.rank, world.size
    raise RuntimeError("a second rendezvous at the same URL is not possible; call init_process_group() again")


def _gathered(what: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
    return collective_json.allgather_json(ringreduce.global_process_set.group, f"torch.{what}", mine)


def _described(failure: Exception | None) -> dict[str, Any]:
    return {} if failure is None else {"error": str(failure)[:ERROR_CHARS], "kind": type(failure).__name__}


def _opened(size: int, timeout: timedelta, me: str) -> tuple[Any, dict[str, Any]]:
    """Rank 0's store, and what the others need to know. It listens at one address, which torch's own would not.

    The secret is for groups on several hosts, where MPI connects the job and there is no secret file; MPI carries it.
    """
    job = state.require()
    secret = b""
    if len(set(job.hosts)) == 1:
        ip = LOOPBACK
    elif job.reached is not None:
        ip = job.reached.ip
    else:
        ip = reachable_ip([], me)
        if not config.value("RINGREDUCE_SECRET_FILE").value:
            secret = os.urandom(SECRET_NBYTES)
    listener = listening(ip, own_ports(), size + SPARE_CALLERS)
    port = listener.getsockname()[1]
    store = TCPStore(ip, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, {"ip": ip, "port": port, "secret": secret.hex()}
