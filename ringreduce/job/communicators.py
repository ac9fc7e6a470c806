"""mpi4py communicators as arguments: init(comm=...), ProcessSet(comm), and whether the launcher and MPI agree.

Ranks take their places from the communicator, and those of one host meet by shared memory; MPI carries one small
gather, on a duplicate of the communicator, so that it matches nothing of the user's. mpi4py is never imported here: who
has a communicator has imported it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, NamedTuple

from ringreduce import config
from ringreduce.errors import InvalidArgumentError, TimeoutError, UnavailableError
from ringreduce.job import environment, places, rendezvous
from ringreduce.job.deadline import Deadline
from ringreduce.job.places import PlacedRanks

RECORD_NBYTES = 8192  # of one rank in a gather: JSON with two errors at most (tcp/job.py), filled up with spaces
MPI_LAUNCHERS = ("openmpi", "pmix", "mpich", "slurm")
"""Those of environment.detect() that tell MPI how many ranks there are; ringrun and torchrun do not."""


def is_communicator(value: object) -> bool:
    """Whether it is an mpi4py communicator. Imports nothing."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(value, module.Comm)


def is_null(comm: Any) -> bool:
    """Whether this process is outside the communicator, as Split() with MPI.UNDEFINED leaves it."""
    return bool(comm == sys.modules["mpi4py.MPI"].COMM_NULL)


def may_be_of(comm: Any, place: environment.Placement) -> bool:
    """Whether a communicator may be that of a rank at this place, so far as can be told without MPI's traffic."""
    module = sys.modules["mpi4py.MPI"]
    if not module.Is_initialized() or module.Is_finalized():  # then every question ends the process
        return True
    return not is_null(comm) and (comm.Get_rank(), comm.Get_size()) == (place.rank, place.size)


def place_ranks(comm: Any, timeout_s: float, transport: str) -> PlacedRanks:
    """Each rank's place, and one fresh meeting point for each host. Collective over the communicator.

    Arguments and errors are those of exchange_records(), and UnavailableError: they are on several hosts, and
    RINGREDUCE_ENCRYPT is on.
    """
    check_communicator(comm)
    address, secret = rendezvous.new_address()
    records = exchange_records(comm, timeout_s, transport, {"address": address.hex(), "secret": secret.hex()})
    rank = comm.Get_rank()
    hosts = places.host_labels(records)
    if len(set(hosts)) > 1:
        _check_encryption(rank, len(hosts))
    leader = records[hosts[rank]]
    place = places.placement(hosts, rank, "communicator")
    return PlacedRanks(place, hosts, bytes.fromhex(leader["address"]), bytes.fromhex(leader["secret"]))


def _check_encryption(rank: int, size: int) -> None:
    """Raises UnavailableError where the user asks for what MPI does not do; "auto" asks for nothing."""
    knob = config.value("RINGREDUCE_ENCRYPT")
    if config.choice(knob.name) == "on":
        raise UnavailableError(
            f"[communicator] rank {rank}/{size}: {knob.origin}={knob.value}, and MPI connects the hosts of this job: "
            "MPIs do not encrypt. Set RINGREDUCE_TRANSPORT=shm+tcp, which connects them by TCP, and "
            "RINGREDUCE_SECRET_FILE to a file that is the same on all hosts: without one MPI carries the job's secret"
        )


def check_communicator(comm: Any) -> None:
    """Raises InvalidArgumentError: MPI is not initialised, or was finalised; the communicator is null or an
    inter-communicator; the launcher started more ranks than MPI knows."""
    _check(comm, "init(comm=...)")
    check_launcher(asked=comm != sys.modules["mpi4py.MPI"].COMM_SELF)


def check_size(world: Any, place: environment.Placement) -> None:
    """Raises InvalidArgumentError when MPI.COMM_WORLD has another size than the launcher says."""
    check_launcher(asked=True)
    if world.Get_size() != place.size:
        raise InvalidArgumentError(
            f"{place.source} started {place.size} ranks, but MPI.COMM_WORLD has {world.Get_size()}: start the job with "
            f"mpirun, or with `ringrun --transport mpi -np {place.size} ...`, which calls it; or give init() an "
            "address, and the ranks are connected by TCP"
        )


def exchange_records(comm: Any, timeout_s: float, transport: str, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """What each rank says of itself, by rank. Collective over the communicator, whatever the transport is.

    Args:
        comm: an intra-communicator of mpi4py; it stays the caller's.
        timeout_s: seconds until all ranks must have come; 0 = no limit.
        transport: of RINGREDUCE_TRANSPORT.
        mine: added to what places.own_record() says; JSON can carry it.

    Raises:
        InvalidArgumentError: the ranks run different builds. MismatchError: they have other settings.
        TimeoutError: not all ranks came.
    """
    rank = comm.Get_rank()
    records = _gather(comm, places.own_record(rank, comm.Get_size(), transport) | mine, "init(comm=...)", timeout_s)
    places.check_agreement(records, records[rank], len(records), "[communicator]")
    return records


def world_ranks(comm: Any) -> list[int]:
    """The ranks in MPI.COMM_WORLD of a communicator's processes; none when it is null. Local: nothing is sent.

    Raises InvalidArgumentError when MPI does not run, for an inter-communicator, and where a process is not in
    MPI.COMM_WORLD (it was spawned).
    """
    module = sys.modules["mpi4py.MPI"]
    _check_running("ProcessSet(comm)")
    if is_null(comm):
        return []
    _check(comm, "ProcessSet(comm)")
    group, world = comm.Get_group(), module.COMM_WORLD.Get_group()
    ranks = [int(rank) for rank in group.Translate_ranks(list(range(group.Get_size())), world)]
    group.Free()
    world.Free()
    if module.UNDEFINED in ranks:
        raise InvalidArgumentError("ProcessSet(comm): a process of the communicator is not in MPI.COMM_WORLD")
    return ranks


def world_rank() -> int:
    """This process's rank in MPI.COMM_WORLD; MPI is running."""
    return int(sys.modules["mpi4py.MPI"].COMM_WORLD.Get_rank())


def _running_mpi() -> Any:
    """mpi4py's module where the program has imported it and MPI is initialised and not finalised, else None."""
    module = sys.modules.get("mpi4py.MPI")
    return module if module is not None and module.Is_initialized() and not module.Is_finalized() else None


def check_alone() -> None:
    """Raises InvalidArgumentError when MPI runs here with several ranks, though no launcher says so.

    Each process would train by itself. Nothing is asked of an MPI that is not initialised.
    """
    module = _running_mpi()
    if module is None:
        return
    world = module.COMM_WORLD
    if world.Get_size() > 1:
        raise InvalidArgumentError(
            f"[communicator] MPI says that this process is rank {world.Get_rank()} of {world.Get_size()}, but its "
            "launcher has left no variable that ringreduce knows, so each rank would be alone: say "
            "init(comm=MPI.COMM_WORLD) to take MPI's ranks, or init(comm=MPI.COMM_SELF) where each is to be alone"
        )


def check_launcher(environ: environment.Environ = os.environ, asked: bool = False) -> None:
    """Raises InvalidArgumentError when MPI runs here, alone, though a launcher started this process as one of many.

    That is what happens when the launcher is another MPI's than the library: Hydra's mpirun and Open MPI's library
    start N jobs of one rank. Nothing is asked of an MPI that is not initialised.

    Args:
        asked: whether the ranks are to come from MPI, which ringrun's and torchrun's know nothing of; otherwise they
            are left alone, whatever MPI says.
    """
    started = environment.launcher_size(environ)
    module = _running_mpi()
    if module is None or started is None:
        return
    launcher, size = started
    world = module.COMM_WORLD.Get_size()
    if size == 1 or world != 1 or not (asked or launcher in MPI_LAUNCHERS):
        return
    library = library_name(module.Get_library_version())
    remedy = "srun --mpi=pmix (or pmi2; `srun --mpi=list`)" if launcher == "slurm" else f"the mpirun of {library}"
    without = ". Without MPI: RINGREDUCE_SECRET_FILE connects the hosts by TCP (docs/user/hosts.md)"
    raise InvalidArgumentError(
        f"[communicator] {_LAUNCHER_NAMES.get(launcher, launcher)} started {size} ranks, but mpi4py has loaded "
        f"{library}, where MPI.COMM_WORLD has size {world}: launcher and library do not belong together, and MPI runs "
        f"{size} jobs of one rank. Start with {remedy}; `ringrun --transport mpi -np {size} ...` finds it. To have "
        "mpi4py load another MPI, set MPI4PY_LIBMPI" + (without if launcher == "slurm" else "")
    )


def library_name(version: str) -> str:
    """The MPI and its number in what MPI_Get_library_version() says.

    >>> library_name("MPICH Version:      5.0.2")
    'MPICH 5.0.2'
    """
    head = version.strip().partition("\n")[0].partition(",")[0]
    words = head.replace("Version:", " ").replace("\t", " ").split()
    return " ".join(word.removeprefix("v") if word[1:2].isdigit() else word for word in words)[:64]


_LAUNCHER_NAMES = {"openmpi": "Open MPI's mpirun", "pmix": "a PMIx launcher", "mpich": "MPICH's mpirun (Hydra)",
                   "slurm": "srun"}  # fmt: skip


def _check_running(call: str) -> None:
    module = sys.modules["mpi4py.MPI"]
    if not module.Is_initialized():
        raise InvalidArgumentError(
            f"{call}: MPI is not initialized. Call MPI.Init() first, or do not set mpi4py.rc.initialize = False"
        )
    if module.Is_finalized():
        raise InvalidArgumentError(f"{call}: MPI was finalized; make this call before MPI.Finalize()")


def _check(comm: Any, call: str) -> None:
    _check_running(call)
    if is_null(comm):
        raise InvalidArgumentError(f"{call}: the communicator is MPI.COMM_NULL: this process is not in it")
    if comm.Is_inter():
        raise InvalidArgumentError(f"{call}: an inter-communicator has no ranks of its own; give comm.Merge()")


def _gather(comm: Any, mine: Any, call: str, timeout_s: float) -> list[Any]:
    """Every rank's object. Non-blocking and polled, so that ranks that do not come cost timeout_s and not for ever."""
    deadline = Deadline(timeout_s)
    exchange = _taken_up(comm, call, deadline) or _Exchange(comm, *comm.Idup())
    _wait(exchange, call, deadline)
    record = bytearray(json.dumps(mine).encode().ljust(RECORD_NBYTES))
    assert len(record) == RECORD_NBYTES
    received = bytearray(RECORD_NBYTES * comm.Get_size())
    gather = exchange.duplicate.Iallgather(record, received)
    _wait(exchange._replace(request=gather, is_gathering=True), call, deadline)
    exchange.duplicate.Free()
    starts = range(0, len(received), RECORD_NBYTES)
    return [json.loads(received[start : start + RECORD_NBYTES]) for start in starts]


class _Exchange(NamedTuple):
    """A gather under way: the duplicate of the communicator is being made, or the records travel on it."""

    comm: Any
    duplicate: Any
    request: Any
    is_gathering: bool = False


def _taken_up(comm: Any, call: str, deadline: Deadline) -> _Exchange | None:
    """The gather that an earlier call has given up on while it made the duplicate: for a late rank it is the first.

    One whose record had been sent by then is waited for, and is over: the late rank has that record.
    """
    for earlier in [one for one in _abandoned if one.comm == comm]:
        _abandoned.remove(earlier)
        if not earlier.is_gathering:
            return earlier
        _wait(earlier, call, deadline)
        earlier.duplicate.Free()
    return None


def _wait(exchange: _Exchange, call: str, deadline: Deadline) -> None:
    pause_s, comm = 20e-6, exchange.comm
    try:
        while not exchange.request.Test():
            if deadline.expired():
                # Which ones is not known: MPI has no way to ask who has entered a collective.
                raise TimeoutError(
                    f"[communicator] rank {comm.Get_rank()}/{comm.Get_size()}: {call}: not all ranks of the "
                    f"communicator came within {deadline.timeout_s:g} s; each of its processes must make this call"
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 1e-3)
    except BaseException:  # KeyboardInterrupt, too
        _abandoned.append(exchange)
        raise


_abandoned: list[_Exchange] = []
"""What was given up on. MPI cannot cancel collectives, and writes into their duplicate and their buffers whenever the
last rank comes."""
