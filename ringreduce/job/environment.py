"""Which rank is this process, of how many: asked of the arguments, then of each launcher's variables in a fixed order.

Order: arguments, RINGREDUCE_* (ringrun), torchrun, Open MPI, Hydra's PMI, PMIx, Slurm's PMI, RANK and WORLD_SIZE alone,
Slurm, HOROVOD_*, else one process.
The first launcher that left its mark answers alone: answers are never mixed. Where that launcher has started one task,
and a later one several ranks, the nearer of the two answers. Reads the given mapping and, where a launcher names its
job nowhere or has started another one, /proc for the processes that this one comes from. Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from operator import index
from typing import NamedTuple

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job import starter

Environ = Mapping[str, str]

BY_PARENT = "parent-"
"""How the name of a job begins that is known by the process that has started the ranks."""
TORCH_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
TORCH_MARK = "_RINGREDUCE_TORCH_PLACE"


@dataclass(frozen=True)
class Placement:
    """This process's place in its job; ranks count from 0."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    source: str
    """arguments | communicator | ringrun | openmpi | pmix | mpich | torchrun | slurm | horovod | single"""
    job: str
    """What makes the rendezvous address of this job unique among this user's jobs on this host; "" where none is
    needed (single) or the ranks agree on one by themselves (communicator)."""


class Launcher(NamedTuple):
    """The variables that one launcher sets. Of `rank` and `size` the first name that is set counts."""

    source: str
    marks: tuple[str, ...]
    """The launcher has started this process if all of these are set."""
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: str
    local_size: str
    cross_rank: str
    cross_size: str
    job: Callable[[Environ], str]


def detect(
    rank: int | None = None,
    size: int | None = None,
    environ: Environ = os.environ,
    *,
    network: bool,
    job: str | None = None,
) -> Placement:
    """Where this process stands in its job.

    Args:
        rank, size: both or neither; when given they win over every variable, and the job is taken to be on one host.
        environ: the variables to read.
        network: whether the job may be on several hosts.
        job: names the job, whatever a launcher calls it; but for ranks whose place ringrun tells, with no arguments.

    Raises:
        InvalidArgumentError: a variable (named in the text) has no sensible value, or half of a pair is missing.
        UnavailableError: the job is on several hosts, and `network` is False.

    >>> place = detect(environ={"PMI_RANK": "1", "PMI_SIZE": "2"}, network=True)
    >>> place.rank, place.size, place.local_size, place.source
    (1, 2, 2, 'mpich')
    """
    if rank is not None or size is not None:
        return _named(_from_arguments(rank, size, environ), job, environ)
    launcher = _launcher(environ)
    if launcher is None:
        _check_alone(environ)
        return Placement(0, 1, 0, 1, 0, 1, "single", "")
    place = _named(_read(launcher, environ), job, environ)
    if not network and spans_hosts(place):
        hosts = f"{place.cross_size} hosts" if place.cross_size > 1 else "several hosts"
        raise UnavailableError(
            f"rank {place.rank}/{place.size}: {launcher.source} started this job on {hosts}, {place.local_size} ranks "
            "on this one, and RINGREDUCE_TRANSPORT allows shared memory only: leave it at auto, or say mpi"
        )
    return place


def _named(place: Placement, job: str | None, environ: Environ) -> Placement:
    """The place in the job of that name. Ranks that ringrun has started stay in ringrun's job."""
    started = rendezvous_secret(environ)
    if job is None or (started is not None and place.source != "arguments"):
        return place
    if not isinstance(job, str) or not job:
        raise InvalidArgumentError(f"init(job={job!r}): the name of a job is a string that is not empty")
    return replace(place, job=f"{started[0]}-named-{job}" if started else "named-" + job)


def name_across_hosts(source: str, job: str | None, environ: Environ = os.environ) -> str:
    """What is the same on all hosts of a job, and another in every other job, as far as anything says so; "" = nothing.

    Args:
        source: who has started the ranks, as Placement.source. Variables of others may differ between hosts: under
            mpirun inside of a Slurm job, only ranks on other hosts than mpirun's are in a step.
        job: the name that the user has given.

    >>> name_across_hosts("torchrun", None, {"TORCHELASTIC_RUN_ID": "7", "SLURM_STEP_ID": "1"})
    'TORCHELASTIC_RUN_ID=7'
    """
    if job is not None:
        return "named-" + job
    return " ".join(f"{name}={environ[name]}" for name in _JOB_ACROSS_HOSTS.get(source, ()) if name in environ)


_JOB_ACROSS_HOSTS = {
    # Not the number of restarts: an agent counts those that its own ranks cause. Without an id that is "none".
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_PORT"),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "openmpi": ("PMIX_NAMESPACE",),
    "pmix": ("PMIX_NAMESPACE",),
    "mpich": ("PMI_JOBID",),  # srun's; Hydra names its job nowhere
}


def spans_hosts(place: Placement) -> bool:
    """Whether the launcher has started ranks on other hosts."""
    return place.local_size != place.size or place.cross_size != 1


def has_torch_local_size(environ: Environ = os.environ) -> bool:
    """Whether who has set RANK and WORLD_SIZE says too how many of the ranks are on this host, as torchrun does."""
    return _TORCHRUN.local_rank in environ and _TORCHRUN.local_size in environ


def launcher_size(environ: Environ = os.environ) -> tuple[str, int] | None:
    """Who started this process (as Placement.source) and as one of how many ranks; None without a launcher.

    Raises InvalidArgumentError as detect() does, and nothing about hosts.
    """
    launcher = _launcher(environ)
    return None if launcher is None else (launcher.source, _first_integer(launcher, launcher.size, environ)[1])


def tell_torch(rank: int, size: int, local_rank: int, local_size: int, environ: MutableMapping[str, str]) -> None:
    """Sets the variables by which Accelerate and Transformers know a rank, where no launcher has set one of them.

    TORCH_MARK repeats their values, so that this process, and those that it starts, do not take this job for one of
    torchrun's: detect() leaves such variables out, ringrun keeps them from its ranks, and a job within sets its own.
    """
    if is_told_by_us(environ) or not any(name in environ for name in TORCH_PLACE):
        told = [str(value) for value in (rank, size, local_rank, local_size)]
        environ.update(zip(TORCH_PLACE, told, strict=True))
        environ[TORCH_MARK] = " ".join(told)


def is_told_by_us(environ: Environ) -> bool:
    """Whether the values of TORCH_PLACE are those of tell_torch(), here or in the process that has started this one."""
    return environ.get(TORCH_MARK) == " ".join(environ.get(name, "") for name in TORCH_PLACE)


def rendezvous_secret(environ: Environ = os.environ) -> tuple[str, bytes] | None:
    """The job's name and secret from RINGREDUCE_RENDEZVOUS="name:hex secret", or None when it is not set.

    Raises InvalidArgumentError when it has another form; the text does not repeat the secret.
    """
    given = environ.get("RINGREDUCE_RENDEZVOUS")
    if given is None:
        return None
    name, colon, secret = given.rpartition(":")
    try:
        if not name or not colon or not secret:
            raise ValueError
        return name, bytes.fromhex(secret)
    except ValueError:
        raise InvalidArgumentError(
            'RINGREDUCE_RENDEZVOUS is not of the form "name:secret" with the secret in hexadecimal; ringrun sets it'
        ) from None


def _from_arguments(rank: int | None, size: int | None, environ: Environ) -> Placement:
    if rank is None or size is None:
        raise InvalidArgumentError(f"rank and size must be given together: rank={rank}, size={size}")
    try:
        rank, size = index(rank), index(size)  # NumPy's integers too: other hosts are told rank and size as JSON
    except TypeError:
        raise InvalidArgumentError(f"init(rank={rank!r}, size={size!r}): give two ints") from None
    _check_within("rank", rank, "size", size)
    launcher = _launcher(environ)
    named = rendezvous_secret(environ)
    job = named[0] if named else launcher.job(environ) if launcher else _parent(environ)
    return Placement(rank, size, rank, size, 0, 1, "arguments", job)


def _launcher(environ: Environ) -> Launcher | None:
    found = [known for known in _LAUNCHERS if all(mark in environ for mark in known.marks)]
    if is_told_by_us(environ):
        found = [known for known in found if known is not _RANK_ALONE]
    if not found:
        return None
    first, *others = found
    if first.source == "ringrun":
        _check_nothing_within(first, others, environ)
        return first
    if first is _TORCHRUN:
        mpi = next((known for known in others if known.source in _OF_MPI), None)
        return first if mpi is None else _nearer(first, mpi, environ)
    return _nearest(first, [known for known in others if known in _AFTER_MPI], environ)


def _nearest(first: Launcher, others: list[Launcher], environ: Environ) -> Launcher:
    """The first, or one of the others that has started this process from the first one's only task.

    A shell of `srun --pty` has the variables of a job of one rank, and so have all ranks that are started there: each
    would be alone. Raises InvalidArgumentError where /proc does not tell who has started whom.
    """
    rank, size = _rank_and_size(first, environ)
    for other in others:
        its_rank, its_size = _rank_and_size(other, environ)
        if first is _RANK_ALONE and other.source == "slurm" and (its_rank, its_size) == (rank, size):
            return other  # a wrapper of each task has set RANK by what Slurm says; Slurm names the job as well
        if size != "1" or not its_rank or its_size in ("", "1"):
            continue
        is_first = starter.is_nearer(first.marks, other.marks, environ)
        if is_first is None:
            raise InvalidArgumentError(
                f"{_marks(first, environ)} of {first.source} says that this process is alone, {_marks(other, environ)} "
                f"of {other.source} that it is one of {its_size} ranks, and it cannot be told which of the two has "
                "started it: unset the variables of the other one"
            )
        if not is_first:
            return other
    return first


def _check_alone(environ: Environ) -> None:
    """That nothing speaks of other ranks to a process that has no rank: each of them would train by itself."""
    for prefix in ("RINGREDUCE_", "HOROVOD_"):
        name = prefix + "SIZE"
        if name in environ and _integer(name, environ) != 1:
            raise InvalidArgumentError(
                f"{name}={environ[name]} says how many ranks there are, but {prefix}RANK is not set, so this process "
                f"would be alone: set both, start the ranks by ringrun, or unset {name} where it is to be alone"
            )


def _check_nothing_within(ringrun: Launcher, others: list[Launcher], environ: Environ) -> None:
    """That no rank of ringrun's has called another launcher, each of whose ranks would take that rank's place."""
    for other in others:
        if other.source == "horovod" or _rank_and_size(other, environ) == _rank_and_size(ringrun, environ):
            continue  # ringrun sets these; and a wrapper may set those that a program asks for
        if starter.is_nearer(ringrun.marks, other.marks, environ) is False:
            raise InvalidArgumentError(
                f"{_marks(ringrun, environ)} of ringrun and {_marks(other, environ)} of {other.source}, which a rank "
                "of ringrun's has called: use one of the two launchers, or start the inner one by "
                "env -u RINGREDUCE_RANK -u RINGREDUCE_RENDEZVOUS"
            )


def _rank_and_size(launcher: Launcher, environ: Environ) -> list[str]:
    return [next((environ[name] for name in names if name in environ), "") for names in (launcher.rank, launcher.size)]


def _marks(launcher: Launcher, environ: Environ) -> str:
    return " and ".join(f"{mark}={environ[mark]}" for mark in launcher.marks)


def _nearer(torchrun: Launcher, mpi: Launcher, environ: Environ) -> Launcher:
    """Which of two has started this process, where one has started the other. Raises InvalidArgumentError.

    torchrun is often one task of a step of srun's, or of mpirun's, on each node: all of its ranks have that task's
    PMIX_RANK, PMI_RANK or OMPI_COMM_WORLD_RANK. And mpirun may be called by a rank of torchrun's, a driver, say.
    """
    torchs, mpis = (_rank_and_size(known, environ) for known in (torchrun, mpi))
    if torchs == mpis:  # one rank of torchrun's in each task: MPI knows as much
        return mpi
    is_torchrun = starter.is_nearer(torchrun.marks, mpi.marks, environ)
    if is_torchrun is None and torchs[1] == "1" != mpis[1]:  # else each of MPI's ranks might be alone with its work
        raise InvalidArgumentError(
            f"{_marks(torchrun, environ)} and {_marks(mpi, environ)} are of two launchers, and the inner one cannot be "
            f"told: for ranks of {mpi.source} within a rank of torchrun's, start them by env -u TORCHELASTIC_RUN_ID; "
            "for ranks of torchrun's, unset the others"
        )
    return mpi if is_torchrun is False else torchrun


def _read(launcher: Launcher, environ: Environ) -> Placement:
    rank_name, rank = _first_integer(launcher, launcher.rank, environ)
    size_name, size = _first_integer(launcher, launcher.size, environ)
    _check_within(rank_name, rank, size_name, size)
    place = Placement(rank, size, rank, size, 0, 1, launcher.source, launcher.job(environ))
    if _has_pair(launcher, launcher.local_rank, launcher.local_size, environ):
        local_size = _integer(launcher.local_size, environ)
        local_rank = _integer(launcher.local_rank, environ)
        _check_within(launcher.local_rank, local_rank, launcher.local_size, local_size)
        place = replace(place, local_rank=local_rank, local_size=local_size)
    if _has_pair(launcher, launcher.cross_rank, launcher.cross_size, environ):
        cross_size = _integer(launcher.cross_size, environ)
        cross_rank = _integer(launcher.cross_rank, environ)
        _check_within(launcher.cross_rank, cross_rank, launcher.cross_size, cross_size)
        place = replace(place, cross_rank=cross_rank, cross_size=cross_size)
    return place


def _has_pair(launcher: Launcher, rank: str, size: str, environ: Environ) -> bool:
    """Whether both are set. Half a pair is an error where the names are ours; others' launchers may set one alone."""
    has_rank, has_size = rank in environ, size in environ
    if launcher.source == "ringrun" and has_rank != has_size:
        there, missing = (rank, size) if has_rank else (size, rank)
        raise InvalidArgumentError(f"{there}={environ[there]} is set, but {missing} is not set: set both, or neither")
    return has_rank and has_size


def _first_integer(launcher: Launcher, names: tuple[str, ...], environ: Environ) -> tuple[str, int]:
    for name in names:
        if name in environ:
            return name, _integer(name, environ)
    raise InvalidArgumentError(
        f"{_marks(launcher, environ)} says that {launcher.source} started this process, but {' or '.join(names)} is "
        "not set; set it, or pass rank= and size= to init()"
    )


def _integer(name: str, environ: Environ) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidArgumentError(f"{name}={environ[name]!r} is not a whole number") from None


def _check_within(rank_name: str, rank: int, size_name: str, size: int) -> None:
    if size < 1:
        raise InvalidArgumentError(f"{size_name}={size} is not a number of ranks: it must be at least 1")
    if not 0 <= rank < size:
        raise InvalidArgumentError(f"{rank_name}={rank} is out of range for {size_name}={size} (0 to {size - 1})")


# What names the job.


def _ringrun_job(environ: Environ) -> str:
    named = rendezvous_secret(environ)
    return named[0] if named else _parent(environ)


def _pmix_job(environ: Environ) -> str:
    return "pmix-" + environ["PMIX_NAMESPACE"] if "PMIX_NAMESPACE" in environ else _parent(environ)


def _torchrun_job(environ: Environ) -> str:
    """Scripts have fixed ports, and jobs of one user may have the same: the process that started the ranks tells."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    named = "-".join(environ.get(name, "") for name in names)
    return f"torch-{named}-{starter.of_ranks(_OF_A_TORCH_RANK, environ)}"


def _slurm_job(environ: Environ) -> str:
    return f"slurm-{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"


def _horovod_job(environ: Environ) -> str:
    port = environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT")
    return f"horovod-{port}" if port else _parent(environ)


def _pmi_job(environ: Environ) -> str:
    """Hydra names its job nowhere: its proxy, one per host and job, stands for it, behind however many shells."""
    for pid, comm, started in starter.ancestors():
        if comm.startswith("hydra_"):
            return f"hydra-{pid}.{started}"
    return _slurm_job(environ) if "SLURM_STEP_ID" in environ else _parent(environ)


def _parent(environ: Environ) -> str:
    return BY_PARENT + starter.of_this_process()


_OF_A_TORCH_RANK = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")


def _of(prefix: str, source: str, marks: tuple[str, ...], job: Callable[[Environ], str]) -> Launcher:
    names = (prefix + "LOCAL_RANK", prefix + "LOCAL_SIZE", prefix + "CROSS_RANK", prefix + "CROSS_SIZE")
    return Launcher(source, marks, (prefix + "RANK",), (prefix + "SIZE",), *names, job)


_PMI_SIZE = ("PMI_SIZE",)
_SLURM_SIZE = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_SLURM_PLACE = ("", "", "SLURM_NODEID", "SLURM_STEP_NUM_NODES")  # no variable counts the tasks of one node plainly

_TORCH = (("RANK",), ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", _torchrun_job)

# Ranks inherit the variables of an outer launcher. torchrun comes before MPI's where its own TORCHELASTIC_RUN_ID is
# set; where both are, _nearer() says which of them has started the other.
# Slurm's marks include the step: in a batch script, outside srun, there is no step and the process is alone.
# Hydra comes before PMIx: ranks of its that are started within a step of `srun --mpi=pmix` all have that task's
# PMIX_RANK, and steps of srun have no MPI_LOCALNRANKS.
# RANK and WORLD_SIZE are common words: both must be there before they are believed, and MPI's names win over them.
_TORCHRUN = Launcher("torchrun", ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE"), *_TORCH)
_RANK_ALONE = Launcher("torchrun", ("RANK", "WORLD_SIZE"), *_TORCH)
_OF_MPI = frozenset(("openmpi", "pmix", "mpich"))
_LAUNCHERS = (
    _of("RINGREDUCE_", "ringrun", ("RINGREDUCE_RANK",), _ringrun_job),
    _TORCHRUN,
    _of("OMPI_COMM_WORLD_", "openmpi", ("OMPI_COMM_WORLD_RANK",), _pmix_job),
    Launcher("mpich", ("PMI_RANK", "MPI_LOCALNRANKS"), ("PMI_RANK",), _PMI_SIZE,
             "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "", _pmi_job),
    Launcher("pmix", ("PMIX_RANK",), ("PMIX_RANK",), (*_PMI_SIZE, *_SLURM_SIZE), *_SLURM_PLACE, _pmix_job),
    Launcher("mpich", ("PMI_RANK",), ("PMI_RANK",), _PMI_SIZE, *_SLURM_PLACE, _pmi_job),  # srun --mpi=pmi2
    _RANK_ALONE,
    Launcher("slurm", ("SLURM_PROCID", "SLURM_STEP_ID"), ("SLURM_PROCID",), _SLURM_SIZE, *_SLURM_PLACE, _slurm_job),
    _of("HOROVOD_", "horovod", ("HOROVOD_RANK",), _horovod_job),
)  # fmt: skip
_AFTER_MPI = _LAUNCHERS[_LAUNCHERS.index(_RANK_ALONE) :]
