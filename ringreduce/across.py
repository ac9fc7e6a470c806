"""A job on several hosts: its ranks meet through MPI, and those of each host then share memory as on one host.

mpi4py is imported when such a job starts, not before.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ringreduce import __version__, _core, mpi, rendezvous
from ringreduce.deadline import Deadline
from ringreduce.environment import Placement
from ringreduce.errors import InvalidArgumentError, TimeoutError

POLL_S = 50e-6


class Gathering(NamedTuple):
    """What a rank knows of a job once all ranks have come."""

    placement: Placement
    hosts: list[int]
    """By rank: the lowest rank on the same host."""
    joined: rendezvous.Joined
    """The control memory file of this host; pidfds of the ranks here, -1 for the others."""
    communicator: _core.MpiCommunicator


def join(
    place: Placement, timeout_s: float, segment: Callable[[], int], alone: bool, before_close: Callable[[], None]
) -> Gathering:
    """Meets the other ranks of a job that mpirun or srun has started. Collective over MPI.COMM_WORLD.

    Args:
        place: this rank, from environment.detect().
        timeout_s: seconds until all ranks must have come; 0 = no limit.
        segment: makes a host's control memory file; called by the first rank of each host.
        alone: makes each rank a host of its own, also where several share one (RINGREDUCE_TRANSPORT=mpi).
        before_close: called while MPI still works, before it is finalised.

    Raises:
        UnavailableError: mpi4py or its MPI is missing. TimeoutError: not all ranks came.
        InvalidArgumentError: the launcher and MPI disagree about this rank, or the ranks run different builds.
    """
    deadline = Deadline(timeout_s)
    communicator = mpi.communicator(timeout_s=timeout_s, before_close=before_close)
    try:
        if (communicator.rank, communicator.size) != (place.rank, place.size):
            raise InvalidArgumentError(
                f"{place.source} says rank {place.rank} of {place.size}, but MPI says rank {communicator.rank} of "
                f"{communicator.size}: mpirun and the library that mpi4py loads belong to different MPIs. Start the "
                "job with the mpirun of that library (ringrun --transport mpi finds it)"
            )
        address, secret = rendezvous.new_address()
        own = b":%d" % place.rank if alone else b""
        facts = [
            hashlib.sha256(rendezvous.host_identity() + own).digest(),
            hashlib.sha256(f"{__version__} {_core.control_nbytes(place.size)}".encode()).digest(),
            address.ljust(rendezvous.ADDRESS_NBYTES, b"\0"),
            secret,
        ]
        sheets = _allgather(facts, place.size, deadline)
        hosts = [next(r for r, sheet in enumerate(sheets) if sheet[0] == mine[0]) for mine in sheets]
        if others := [r for r, sheet in enumerate(sheets) if sheet[1] != facts[1]]:
            raise InvalidArgumentError(
                f"rank(s) {others} run another build of ringreduce than rank {place.rank} (here {__version__}), or "
                "have another RINGREDUCE_CACHE_CAPACITY: install one version on all hosts"
            )
        here = [r for r, host in enumerate(hosts) if host == hosts[place.rank]]
        leader = sheets[here[0]]
        local = rendezvous.join_here(
            leader[2].rstrip(b"\0"), leader[3], here.index(place.rank), len(here), deadline, segment
        )
        pidfds = [-1] * place.size
        for rank, pidfd in zip(here, local.pidfds, strict=True):
            pidfds[rank] = pidfd
        local.pidfds = pidfds
        return Gathering(_placed(place, hosts), hosts, local, communicator)
    except BaseException:
        communicator.close()
        raise


def _placed(place: Placement, hosts: list[int]) -> Placement:
    """The place with what the ranks have found out about hosts."""
    order = sorted(set(hosts))
    members = {host: [r for r, theirs in enumerate(hosts) if theirs == host] for host in order}
    mine = members[hosts[place.rank]]
    local_rank = mine.index(place.rank)
    across = [host for host in order if len(members[host]) > local_rank]
    return replace(
        place,
        local_rank=local_rank,
        local_size=len(mine),
        cross_rank=across.index(hosts[place.rank]),
        cross_size=len(across),
    )


def _allgather(fields: list[bytes], size: int, deadline: Deadline) -> list[list[bytes]]:
    """Every rank's fields, which have the same lengths on all."""
    from mpi4py import MPI

    mine = b"".join(fields)
    everything = bytearray(len(mine) * size)
    request: Any = MPI.COMM_WORLD.Iallgather([mine, MPI.BYTE], [everything, MPI.BYTE])
    while not request.Test():
        if deadline.expired():
            raise TimeoutError(f"[rendezvous] MPI: not all of {size} ranks called init() within {deadline.timeout_s:g} s")
        time.sleep(POLL_S)
    sheets = []
    for rank in range(size):
        sheet, at = [], rank * len(mine)
        for field in fields:
            sheet.append(bytes(everything[at : at + len(field)]))
            at += len(field)
        sheets.append(sheet)
    return sheets
