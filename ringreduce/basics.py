"""init() and shutdown(), and what a rank may ask about itself."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ringreduce import _core, config, plan, state
from ringreduce.collectives import buffers
from ringreduce.errors import InvalidArgumentError, NotInitializedError
from ringreduce.job import communicators, environment, inheritance, mpi, places, recording, rendezvous
from ringreduce.job.absent import AbsentGroup
from ringreduce.job.deadline import Deadline
from ringreduce.job.failure import failure_report, shutdown_cause, uncaught
from ringreduce.job.process_sets import ProcessSet, global_process_set, register, registered_as
from ringreduce.job.report_interval import Reported, ReportInterval

if TYPE_CHECKING:
    from ringreduce.job.tcp import rendezvous as tcp_rendezvous

_lock = threading.RLock()
_DRAIN_S = 5.0  # kernels of frameworks have been told to leave, and look around every 0.1 s at the latest
_job_argument: str | None = None  # of the init() that has started the job
_init_count = 0  # how many launched jobs this process has joined; ranks with different counts do not meet
_meeting_count = 0  # likewise of jobs whose ranks meet over TCP
_report_interval = ReportInterval()  # of report(); others have one of their own


class World:
    """What init() returns: this rank's place, and a context manager that ends with shutdown()."""

    __slots__ = ("cross_rank", "cross_size", "local_rank", "local_size", "rank", "size")

    def __init__(self, place: environment.Placement) -> None:
        self.rank = place.rank
        self.size = place.size
        self.local_rank = place.local_rank
        self.local_size = place.local_size
        self.cross_rank = place.cross_rank
        self.cross_size = place.cross_size

    def __enter__(self) -> World:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _leave(error)

    def __repr__(self) -> str:
        return f"World(rank={self.rank}, size={self.size}, local_rank={self.local_rank}, local_size={self.local_size})"


def init(
    comm: Any = None,
    process_sets: Sequence[ProcessSet | Sequence[int] | Any] | str | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    job: str | None = None,
    address: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
) -> World:
    """Joins the job. Collective: returns once all ranks have called it.

    While a job is running it does nothing, and warns of arguments that say another job or other process sets.

    Rank and size come from the arguments, else from the launcher's environment (ringrun, mpirun, torchrun, srun),
    else this is a job of one process. May be called again after shutdown().

    Args:
        comm: an mpi4py communicator whose processes are the ranks, in its order; or None, or a list of all ranks,
            which is the same. The communicator stays the caller's and may be freed afterwards.
        process_sets: sets to register at once, as by add_process_set(): ProcessSet objects, lists of ranks or
            communicators; "dynamic" is accepted and registers none.
        rank, size: this process's place, where there is no launcher to tell.
        job: a name that this job's processes share with no other job of this user on this host. Needed where no one
            process has started them all, such as ranks in terminals of their own, and where one process starts two
            jobs at once with rank and size: their ranks could meet each other's. Without effect on ranks whose place
            ringrun tells.
        address: "host:port", the same on all ranks: an address of rank 0's host that the other hosts reach, and a port
            that is free there. For jobs on several hosts without MPI, where the launcher does not tell the ranks where
            rank 0 is (docs/user/hosts.md); RINGREDUCE_ADDRESS is the same as a variable.
        secret_file: a file with at least 16 random bytes, the same on all hosts, that nobody else may read. Needed
            between hosts unless MPI hands over a secret; RINGREDUCE_SECRET_FILE is the same as a variable.

    Returns:
        The rank's place; `with ringreduce.init() as world:` ends with shutdown().

    Raises:
        InvalidArgumentError: a RINGREDUCE_* variable or an argument has a bad value; two process_sets have the same
            ranks; comm is a list of a part of the ranks, or no communicator of this process; the launcher started more
            ranks than the MPI that runs here knows of; rank 0 is not at the address; the secret file is not there, or
            others may read it.
        MismatchError: the ranks differ in their number, in the calls of init() before, in RINGREDUCE_TRANSPORT or in
            their secret; or another process listens at the address.
        TimeoutError: not all ranks came within RINGREDUCE_INIT_TIMEOUT.
        UnavailableError: the job needs a transport that does not exist, or is on several hosts without mpi4py and
            without a secret file; or MPI connects its hosts, and RINGREDUCE_ENCRYPT=on.
    """
    global _job_argument
    with _lock:
        if state.current is None:
            with plan.wanted(again=True).told():
                _start(comm, rank, size, job, address, secret_file)
            _job_argument = job
            set_id = state.next_set_id
            try:
                _register(process_sets)
            except BaseException:
                _leave()
                state.next_set_id = set_id  # nobody has used these sets: the next init() gives their ids, as Horovod
                raise
        else:
            _warn_of_other_job(comm, rank, size, job)
            _warn_of_sets(process_sets)
        return World(state.require().placement)


def shutdown() -> None:
    """Leaves the job. Pending operations fail with ShutdownError. Does nothing twice.

    Does not wait for other ranks, but for at most 2 s in a job on several hosts, so that no message is left in MPI.

    Called while an exception is handled, in a `finally` or an `except`, it tells the other ranks the exception: their
    operations that need this rank fail with PeerLostError, which has its class, text and line. Not told are a
    HorovodInternalError, which the other ranks have too, KeyboardInterrupt, SystemExit, StopIteration, and an exception
    that was being handled when init() was called.
    """
    _leave(sys.exc_info()[1])


def _leave(error: BaseException | None = None) -> None:
    """shutdown(), which tells the others the exception that makes this rank leave."""
    with _lock:
        job = state.current
        if job is None:
            return
        why = shutdown_cause.why(error)  # first: what it calls is the user's, and may be interrupted
        state.finish_work()
        uncaught.disarm()
        state.current = None
        steps: list[Callable[[], Any]] = [
            inheritance.unmark,
            partial(_core.framework_end, state.NOT_INITIALIZED),
            *(process_set.unbind for process_set in job.process_sets.values()),
            partial(global_process_set.unbind, AbsentGroup(NotInitializedError, state.NOT_INITIALIZED)),
            partial(job.context.shutdown, why),
            partial(failure_report.write, job.context, job.placement.rank, job.placement.size),
            partial(_core.framework_drain, _DRAIN_S),
            *([job.communicator.close] if job.communicator is not None else []),
            partial(recording.end, "shutdown() was called", is_last=False),
        ]
        with ExitStack() as each:  # none is left out where Ctrl-C, or a signal's handler, raises in another
            for step in reversed(steps):
                each.callback(step)


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return state.current is not None


def rank() -> int:
    """This process's rank, 0 to size() - 1. Raises NotInitializedError."""
    return state.require().placement.rank


def size() -> int:
    """Number of ranks. Raises NotInitializedError."""
    return state.require().placement.size


def local_rank() -> int:
    """This process's rank among those on its host. Raises NotInitializedError."""
    return state.require().placement.local_rank


def local_size() -> int:
    """Number of ranks on this host. Raises NotInitializedError."""
    return state.require().placement.local_size


def cross_rank() -> int:
    """The index of this host among those that have this local rank. Raises NotInitializedError."""
    return state.require().placement.cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank. Raises NotInitializedError."""
    return state.require().placement.cross_size


def is_homogeneous() -> bool:
    """True when every host has the same number of ranks. Raises NotInitializedError."""
    return len(set(Counter(state.require().hosts).values())) == 1


def stats() -> dict[str, int]:
    """Counters since init(): operations, bytes_moved, bytes_on_bus, bytes_copied, bytes_on_wire, negotiations,
    algorithms, sleeps.

    bytes_on_bus is what busbw is reckoned from, by the factors of nccl-tests: of N ranks, 2(N-1)/N of an all-reduce's
    input, (N-1)/N of a reduce-scatter's and an all-to-all's, N-1 parts of an all-gather, a gather and a scatter,
    and the whole of a broadcast, a reduce and a message.
    bytes_copied includes inputs that had to be copied because they were not contiguous. negotiations are requests that
    this rank has made under the group's lock: each one with a name, and on one host, of those without a name that are
    longer than the eager limit, each one that this rank was the last to call. Raises NotInitializedError.
    """
    job = state.require()
    counters = job.context.stats()
    counters["bytes_copied"] = counters.get("bytes_copied", 0) + buffers.copied() - job.copied_before
    return counters


def report() -> dict[str, float]:
    """Where the time has gone since the last report() of this rank, or since init(), as numbers for a logger.

    sampled_s: seconds that the figures speak of; waited_share: of this rank's time, 0 to 1, that it waited in a call;
    late_share: that most others waited for it; latest_rank: the rank that they waited for longest, -1 for none, and
    latest_share: of the time. busiest_link_from, busiest_link_to: the numbers of two hosts, -1 for none: the link
    between them was busy longest, with bytes that the network did not take yet; busiest_link_share: so much of the
    time; busiest_link_rate: bytes a second meanwhile. With them the counters of stats(), which go on from init().

    The times are sampled, twenty times a second, by the lowest rank of each host, and are a few tenths of a second old:
    two calls within one sample find nothing between them, with sampled_s 0. latest_rank is one of this host; on the
    first host the lowest rank of another host stands for all ranks there. The first host knows of all links, another
    one of its own. ReportLog writes the same to a logger.
    Raises NotInitializedError.
    """
    return _report_interval.figures(reported())


def reported() -> Reported:
    """Of whom report() tells: this rank of the job. Raises NotInitializedError."""
    job = state.require()
    return Reported(job.context, job.placement.rank, stats)


def _start(
    comm: Any,
    rank: int | None,
    size: int | None,
    job: str | None,
    address: str | None,
    secret_file: str | os.PathLike[str] | None,
) -> None:
    timeout_s = config.seconds("RINGREDUCE_INIT_TIMEOUT")
    dynamic = config.flag("RINGREDUCE_DYNAMIC_PROCESS_SETS")
    transport = config.choice("RINGREDUCE_TRANSPORT")
    address = address or config.value("RINGREDUCE_ADDRESS").value
    secret_file = os.path.expanduser(os.fspath(secret_file or config.value("RINGREDUCE_SECRET_FILE").value))
    wanted = places.TcpWanted(address, secret_file, transport, job)
    placed = launched = met = None
    if communicators.is_communicator(comm) and (rank is not None or size is not None):
        raise InvalidArgumentError("init(): comm says rank and size; leave rank= and size= out")
    if state.forked_from is not None and communicators.is_communicator(comm) and not communicators.is_null(comm):
        if comm.Get_size() > 1:
            raise NotInitializedError(state.absence())  # MPI, and its connections, are the parent's
        comm, rank, size = None, 0, 1  # one rank needs no gather, for which MPICH 4 ends a forked child by a signal
    if communicators.is_communicator(comm):
        if transport in places.TCP and not communicators.is_null(comm) and comm.Get_size() > 1:
            from ringreduce.job.tcp import job as tcp_job  # jobs on one host do without it

            met = tcp_job.meet_over_mpi(comm, wanted, 0, timeout_s)
        elif address:
            raise InvalidArgumentError(
                "init(comm=...): ranks of a communicator are connected by MPI: leave the address out. With "
                "RINGREDUCE_TRANSPORT=shm+tcp they are connected by TCP, and MPI tells them where rank 0 listens"
            )
        placed = met.placed if met else communicators.place_ranks(comm, timeout_s, transport)
        place = replace(placed.placement, source="communicator")
    else:
        place = _launched(comm, rank, size, job, network=transport != "shm")
        if _is_parents(place):
            raise NotInitializedError(state.absence())
        if place.source != "arguments" and place.size > 1:
            launched = place
            if state.forked_from is None:
                inheritance.check(place)
        if place.size > 1 and (address or transport in places.TCP or environment.spans_hosts(place)):
            met = _met(place, wanted, timeout_s)
        if met is not None:
            placed = met.placed
            place = replace(placed.placement, source=place.source, job=place.job)
        elif launched is not None and (transport == "mpi" or environment.spans_hosts(place)):
            comm = mpi.world()
            communicators.check_size(comm, place)
            placed = communicators.place_ranks(comm, timeout_s, transport)
            place = placed.placement
    if place.local_rank == 0:
        config.warn(os.environ)
    hosts = placed.hosts if placed is not None else [0] * place.size
    needs_network = len(set(hosts)) > 1
    communicator = tcp = None
    with closing(met.listener) if met else nullcontext(), closing(_joined(place, placed, timeout_s)) as joined:
        if needs_network and met is not None:
            tcp = met.network()
        elif needs_network:
            communicator = mpi.communicator(comm, timeout_s=timeout_s, before_close=_leave)
        try:
            context = _core.Context(
                joined.fd,
                place.rank,
                place.size,
                joined.pidfds,
                os.uname().nodename,
                hosts=hosts if needs_network else None,
                mpi=communicator,
                tcp=tcp,
                recorded_as=f"init {_init_count + _meeting_count}",
                plan=plan.wanted().core(hosts),
            )
        except BaseException:
            if communicator is not None:
                communicator.close()
            tcp = None  # the exception's traceback would keep it
            raise
    try:
        if place.local_rank == 0:
            plan.wanted().warn()
        recording.begin_by_environment(place.rank, place.size)
    except BaseException as error:
        context.shutdown(shutdown_cause.why(error))
        if communicator is not None:
            communicator.close()
        raise
    world = context.world
    if world.size != place.size:
        context.shutdown()
        raise InvalidArgumentError(f"{place.source} says {place.size} ranks, but {world.size} joined")
    reached = state.Reached(met.addresses[0][0], met.groups_secret) if met is not None else None
    state.current = state.Running(context, place, timeout_s, dynamic, buffers.copied(), hosts, communicator, reached)
    try:
        shutdown_cause.begin()
        _core.framework_start(place.rank, place.size, place.local_rank, place.local_size)
        global_process_set.bind(0, world.ranks, world)
        if launched is not None:
            inheritance.mark(launched)
        if place.size > 1:
            uncaught.tell_by(_fail, _leave)
            uncaught.arm(_leave, place.source)
    except BaseException as error:
        _leave(error)
        raise


def _met(place: environment.Placement, wanted: places.TcpWanted, timeout_s: float) -> tcp_rendezvous.Met | None:
    """Meets the ranks of all hosts over TCP, if that is how they are connected."""
    from ringreduce.job.tcp import job as tcp_job

    global _meeting_count
    told_by = tcp_job.source(place, wanted)
    if told_by is None:
        return None
    _meeting_count += 1
    return tcp_job.meet_ranks(told_by, place, wanted, _meeting_count, timeout_s)


def _fail(why: str) -> None:
    """Tells the other ranks why this process ends. Their operations fail with PeerLostError."""
    if state.current is not None:
        state.current.context.fail_as_lost(why)


def _launched(comm: Any, rank: int | None, size: int | None, job: str | None, network: bool) -> environment.Placement:
    """The place that arguments or launcher give."""
    place = environment.detect(rank, size, network=network, job=job)
    if comm is not None and not _is_world(comm, place.size):
        raise InvalidArgumentError(
            "Horovod has not been built with MPI support. init(comm=[...]) with a part of the ranks needs it; give an "
            "mpi4py communicator of these ranks, or call init() on all ranks and use add_process_set() for a part"
        )
    if place.source in communicators.MPI_LAUNCHERS:
        communicators.check_launcher()
    elif place.source == "single":
        communicators.check_alone()
    return place


def _is_parents(place: environment.Placement) -> bool:
    """Whether a rank that this process was forked from has this place already."""
    parent = state.forked_from
    if parent is None or place.size == 1 or place.rank != parent.rank:
        return False
    has_no_name = all(one.job.startswith(environment.BY_PARENT) for one in (place, parent))
    return place.source != "arguments" or (place.size == parent.size and (place.job == parent.job or has_no_name))


def _is_world(comm: Any, size: int) -> bool:
    """Whether Horovod's comm argument means all ranks. Raises InvalidArgumentError when it is no such argument."""
    if isinstance(comm, (list, tuple, range)) and all(isinstance(rank, int) for rank in comm):
        return not comm or list(comm) == list(range(size))
    raise InvalidArgumentError(
        "Invalid type of argument comm. Expected list of rank integers or mpi4py.MPI.Comm object."
    )


def _warn_of_other_job(comm: Any, rank: int | None, size: int | None, job: str | None) -> None:
    """One warning of the arguments of init() that the running job is not of."""
    place = state.require().placement
    is_same = (
        communicators.may_be_of(comm, place)
        if communicators.is_communicator(comm)
        else comm is None or _is_world(comm, place.size)
    )
    others = {
        "comm": None if is_same else comm,
        "rank": None if rank == place.rank else rank,
        "size": None if size == place.size else size,
        "job": None if place.source == "ringrun" or job == _job_argument else job,
    }
    told = ", ".join(f"{name}={value!r}" for name, value in others.items() if value is not None)
    if told:
        warnings.warn(
            f"init({told}) has no effect: this process is rank {place.rank}/{place.size} of a job that runs. Call "
            "shutdown() before, or leave these arguments out",
            RuntimeWarning,
            stacklevel=config.users_level(),
        )


def _register(process_sets: Sequence[ProcessSet | Sequence[int] | Any] | str | None) -> None:
    if isinstance(process_sets, str):
        if process_sets != "dynamic":
            raise InvalidArgumentError(f'process_sets is a list of process sets or "dynamic", not {process_sets!r}')
        state.require().dynamic = True
        return
    for number, entry in enumerate(process_sets or ()):
        process_set = entry if isinstance(entry, ProcessSet) else ProcessSet(entry)
        duplicate = registered_as(process_set, state.require()) is not None
        try:
            register(process_set)  # raises on all ranks alike, also where only one has a duplicate
        except InvalidArgumentError as error:
            if not duplicate:
                raise
            raise InvalidArgumentError(
                f"Horovod could not be initialized because process_sets entry number {number} is a duplicate: "
                f"{process_set}"
            ) from error


def _warn_of_sets(process_sets: Sequence[ProcessSet | Sequence[int] | Any] | str | None) -> None:
    """One warning of the process sets given to an init() in a running job that are none of the job's."""
    if isinstance(process_sets, str):
        return
    for number, entry in enumerate(process_sets or ()):
        process_set = entry if isinstance(entry, ProcessSet) else ProcessSet(entry)
        known = registered_as(process_set, state.require())
        if known is None:
            cure = "Call add_process_set() on all ranks if it is not registered"
        elif isinstance(entry, ProcessSet) and known is not entry:
            cure = f"Its ranks are registered as {known}: use that one"
        else:
            continue
        warnings.warn(
            f"init(): process_sets entry number {number}, {process_set}, has no effect, because a job runs. {cure}",
            RuntimeWarning,
            stacklevel=config.users_level(),
        )
        return


def _joined(place: environment.Placement, placed: places.PlacedRanks | None, timeout_s: float) -> rendezvous.Joined:
    """Meets the other ranks. Jobs of communicators are not counted: each has an address of its own."""
    global _init_count
    _init_count += placed is None
    label = f"ringreduce.world.{_init_count}"

    def segment() -> int:
        return _core.memfd(label, _core.control_nbytes(place.size))

    if placed is None:
        return rendezvous.join_job(place, _init_count, timeout_s, segment)
    return rendezvous.join_placed(placed, Deadline(timeout_s), segment)


def _renew_lock_in_child() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that the child does not have may have had the other one


os.register_at_fork(after_in_child=_renew_lock_in_child)
atexit.register(_leave)
