"""Process sets: groups of ranks that communicate among themselves, with Horovod's names and texts.

The set of all ranks is `global_process_set`. Others are made by add_process_set(), at any time after init(). A set made
from an mpi4py communicator is each rank's own: Split() gives every rank one of several sets that do not overlap, and
these are registered in one go under one id.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any

from ringreduce import _core, state
from ringreduce.errors import InvalidArgumentError, MismatchError, NotInitializedError
from ringreduce.job import collective_json, communicators
from ringreduce.job.absent import AbsentGroup
from ringreduce.job.proposals import Proposal, sets_of

if TYPE_CHECKING:
    from ringreduce._core import Group

# Of ProcessSet.place: the id has 32 bits, the rank 15, and the number of ranks the rest.
RANK_SHIFT = 32
SIZE_SHIFT = 47
ID_MASK = (1 << RANK_SHIFT) - 1

UNREGISTERED = AbsentGroup(
    InvalidArgumentError, "{call}: Process set provided does not exist, or has not been registered."
)


class ProcessSet:
    """A set of ranks that runs collectives on its own.

    Args:
        ranks_or_comm: the global ranks of the members, in any order; or an mpi4py communicator whose processes are the
            members (MPI.COMM_NULL: this rank is in none of them).

    Attributes:
        process_set_id: the same on all ranks, and not that of a set of an earlier job; None until the set is
            registered.
        ranks: sorted list of global ranks; index = rank within the set. Empty until a set made from a communicator is
            registered.
        mpi_comm: the communicator it was made from; needed until it is registered, and not afterwards.
        group: the native group, for this package's own use.
        joins: how many calls of join() on the set have ended, the same on all members; for this package's own use.
        joined_last: the global rank that the last of them returned, None before; likewise.
        place: the id, and this rank's place in the set, as one number; -1 until the set is registered.

    Raises:
        InvalidArgumentError: it is not a sequence of ints.
    """

    __slots__ = (
        "__weakref__",
        "_family",
        "_position",
        "group",
        "joined_last",
        "joins",
        "mpi_comm",
        "place",
        "process_set_id",
        "ranks",
    )

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.mpi_comm = ranks_or_comm if communicators.is_communicator(ranks_or_comm) else None
        try:
            members = {index(rank) for rank in ranks_or_comm} if self.mpi_comm is None else set()
        except TypeError:
            raise InvalidArgumentError(
                "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object, not "
                f"{ranks_or_comm!r}"
            ) from None
        self.process_set_id: int | None = None
        self.place = -1
        self.joins = 0
        self.joined_last: int | None = None
        self.ranks: list[int] = sorted(members)
        self._family: list[list[int]] = []  # the ranks of every set that has this id; one, but for communicators
        self.group: Group = UNREGISTERED  # type: ignore[assignment]
        self._position: dict[int, int] = {}

    def size(self) -> int | None:
        """Number of members; None until registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's rank within the set; None until registered. Raises InvalidArgumentError outside the set."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise InvalidArgumentError("Process is not part of provided process set.")
        return self._position[state.require().placement.rank]

    def included(self) -> bool | None:
        """True when this process is a member; None until registered."""
        if self.process_set_id is None:
            return None
        return state.require().placement.rank in self._position

    def position(self, rank: int, call: str) -> int:
        """The rank within the set of a global rank. Raises InvalidArgumentError when it is no member."""
        try:
            number = rank if isinstance(rank, int | float) else index(rank)  # tensors have no hash
            return self._position[number]
        except (KeyError, TypeError):  # TypeError: a list, which is no number
            raise InvalidArgumentError(
                f"{call} received invalid root rank {rank} for provided process set; members: {self.ranks}"
            ) from None

    def spans_hosts(self) -> bool:
        """Whether the members are on several hosts; False until registered."""
        job = state.current
        if job is None or self.process_set_id is None:
            return False
        return len({job.hosts[rank] for rank in self.ranks}) > 1

    def has(self, ranks: list[int]) -> bool:
        """Whether these sorted ranks are those of the set, or of another that was registered with it."""
        return ranks == self.ranks or ranks in self._family

    def bind(
        self, process_set_id: int, ranks: list[int], group: Group | AbsentGroup, family: list[list[int]] | None = None
    ) -> None:
        """Attaches the set to its group (for init and add_process_set)."""
        self.ranks = ranks
        self._family = family or [ranks]
        self._position = {rank: at for at, rank in enumerate(ranks)}
        self.group = group  # type: ignore[assignment]
        self.process_set_id = process_set_id
        rank = len(ranks) if isinstance(group, AbsentGroup) else group.rank
        self.place = process_set_id | rank << RANK_SHIFT | len(ranks) << SIZE_SHIFT
        _core.framework_enter(process_set_id, ranks, None if isinstance(group, AbsentGroup) else group)

    def unbind(self, group: AbsentGroup = UNREGISTERED) -> None:
        """Invalidates the set (for shutdown, remove_process_set and fork)."""
        if self.process_set_id is not None:
            _core.framework_leave(self.process_set_id)
        self.process_set_id = None
        self.place = -1
        self.group = group  # type: ignore[assignment]
        self._position = {}

    def __deepcopy__(self, memo: object) -> ProcessSet:
        """The set itself: a copied model (SyncBatchNorm) communicates with the same ranks."""
        return self

    def __reduce__(self) -> tuple[object, ...] | str:
        """Pickles as an unregistered set of the same ranks; the global one as itself."""
        return ProcessSet, (self.ranks,)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __str__ = __repr__


class GlobalProcessSet(ProcessSet):
    """The set of all ranks: id 0, bound by init()."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__([])
        self.unbind(AbsentGroup(NotInitializedError, state.NOT_INITIALIZED))

    def size(self) -> int:
        """Number of ranks. Raises NotInitializedError before init()."""
        return state.require().placement.size

    def rank(self) -> int:
        """This process's rank. Raises NotInitializedError before init()."""
        return state.require().placement.rank

    def __reduce__(self) -> str:
        return "global_process_set"

    def included(self) -> bool:
        """True. Raises NotInitializedError before init()."""
        return state.require() is not None

    def unbind(self, group: AbsentGroup = UNREGISTERED) -> None:
        """Back to the state before init(): no ranks, and calls raise what `group` raises."""
        super().unbind(group)
        self.process_set_id = 0
        self.ranks = []


global_process_set = GlobalProcessSet()
"""All ranks of the job; the default of every `process_set` argument."""


def group_of(process_set: ProcessSet) -> Group:
    """The native group of what a caller has given. Raises InvalidArgumentError where that is no process set."""
    try:
        return process_set.group
    except AttributeError:
        raise no_process_set(process_set) from None


def no_process_set(given: object) -> InvalidArgumentError:
    """What group_of() raises, for calls of a few bytes: they look the group up themselves."""
    return InvalidArgumentError(
        f"process_set={given!r} is no ProcessSet: give what add_process_set([...]) has returned, or leave the argument "
        "out for all ranks"
    )


_core.framework_end(state.NOT_INITIALIZED)


def add_process_set(process_set: ProcessSet | Iterable[int] | Any) -> ProcessSet:
    """Registers a process set. Collective: every rank of the job makes the same calls in the same order.

    Sets may overlap, and operations on several sets may be in flight at once. HOROVOD_DYNAMIC_PROCESS_SETS is on
    unless it is set to 0.

    Args:
        process_set: a ProcessSet, the global ranks of its members, or an mpi4py communicator: with one, each rank
            registers the set it is in, as Split() has made them, and all of them bear one id.

    Returns:
        The registered set (the object given, if it was a ProcessSet).

    Raises:
        NotInitializedError: before init().
        InvalidArgumentError: the ranks are registered already, out of range, or none; or dynamic sets are switched off.
        MismatchError: another rank passed other ranks; nothing is registered anywhere.
    """
    if not state.require().dynamic:
        raise InvalidArgumentError(
            "Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding process sets after Horovod initialization."
        )
    return register(process_set)


def register(process_set: ProcessSet | Iterable[int] | Any) -> ProcessSet:
    """What init(process_sets=...) and add_process_set() do."""
    job = state.require()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    place = job.placement
    proposal = _proposal(added, place.rank)
    gathered = collective_json.allgather_json(
        global_process_set.group, "add_process_set", [job.first_set_id, state.next_set_id, list(proposal)]
    )
    # The largest: a rank whose last call has failed, and not the others', counts fewer, and so does one that has been
    # in fewer jobs. Links go by the id, so those of a job differ; after the network's last one they begin again at 1.
    first, number = (max(count[which] for count in gathered) for which in range(2))
    had = number - first
    set_id = (number - 1) % job.context.most_group + 1
    proposals = [Proposal(*other) for _, _, other in gathered]
    family = sets_of(proposals, place.rank)
    problem = _problem(family, added, job)
    if problem is None and had >= job.context.most_group:
        problem = (
            f"add_process_set: this job has had {had} process sets, removed ones included, and MPI has no tags "
            "for one more (MPI_TAG_UB). Keep sets rather than make them anew, or use RINGREDUCE_TRANSPORT=shm+tcp"
        )
    if problem is not None:  # only now, so that ranks that passed something else raise as well instead of waiting
        raise InvalidArgumentError(problem)
    state.next_set_id = number + 1
    ranks = next(
        (ranks for ranks in family if place.rank in ranks), [] if proposal.world_rank is not None else family[0]
    )
    if place.rank in ranks:
        here = job.here(ranks)
        fd_exchange = collective_json.FdExchange.from_json(proposals[here[0]].fd_exchange)
        nbytes = _core.control_nbytes(len(ranks))
        check = partial(global_process_set.group.check_members, here)
        with fd_exchange.memory_file(f"process_set.{set_id}", nbytes, here, place.rank, job.timeout_s, check) as fd:
            added.bind(set_id, ranks, job.context.add_group(fd, ranks, set_id), family)
    else:
        outside = "{call}: Rank " + str(place.rank) + " is not a member of the provided process set."
        added.bind(set_id, ranks, AbsentGroup(InvalidArgumentError, outside), family)
    job.process_sets[set_id] = added
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a process set and invalidates the object. Collective: every rank of the job calls it.

    Waits first for the compiled code of JAX that this thread has in flight, and raises its error.

    Returns:
        True; False (at once, with nothing done) for the global set and for a set that is not registered.

    Raises:
        NotInitializedError: before init().
        MismatchError: another rank removes another set; nothing is removed anywhere.
        InvalidArgumentError: it is no ProcessSet; or a rank has joined on the set and still waits for others, and
            nothing is removed anywhere.
    """
    job = state.require()
    group = group_of(process_set)
    set_id = process_set.process_set_id
    if process_set is global_process_set or set_id is None:
        return False
    state.finish_in_flight()
    has_joined = bool(process_set.included()) and group.is_joining
    gathered = collective_json.allgather_json(global_process_set.group, "remove_process_set", [set_id, has_joined])
    if joined := [rank for rank, (_, has) in enumerate(gathered) if has]:
        raise InvalidArgumentError(
            f"remove_process_set: rank {joined[0]} has called join() on process set {set_id}, and not all others have"
        )
    for other, (theirs, _) in enumerate(gathered):
        if theirs != set_id:
            raise MismatchError(
                f"Mismatched remove_process_set: rank {job.placement.rank} removes process set {set_id}, but rank "
                f"{other} removes process set {theirs}."
            )
    if process_set.included():
        job.context.remove_group(group)
    del job.process_sets[set_id]
    process_set.unbind()
    return True


def _proposal(added: ProcessSet, rank: int) -> Proposal:
    """What this rank proposes."""
    if added.process_set_id is not None:  # a duplicate, and all ranks are to see the same one
        return Proposal.of_ranks(added._family[0], rank)
    return Proposal.of_ranks(added.ranks, rank) if added.mpi_comm is None else Proposal.of_communicator(added.mpi_comm)


def _problem(family: list[list[int]], added: ProcessSet, job: state.Running) -> str | None:
    """What is wrong with the ranks of new sets, the same on all ranks."""
    size = job.placement.size
    for ranks in family or [[]]:
        if not ranks:
            return f"a process set has one or more ranks; this job has {_span(size)}"
        if strays := [rank for rank in ranks if not 0 <= rank < size]:
            which = f"rank {strays[0]} does" if len(strays) == 1 else f"ranks {strays} do"
            return f"process set of ranks {ranks}: {which} not exist: this job has {_span(size)}"
        known = _registered(ranks, added, job)
        if known is not None:
            what = f"{added}" if added.ranks else f"ranks {ranks}"
            return f"Attempted to add a duplicate process set: {what} is registered as {known}"
    return None


def _span(size: int) -> str:
    return f"ranks 0 to {size - 1}" if size > 1 else "rank 0 only"


def registered_as(process_set: ProcessSet, job: state.Running) -> ProcessSet | None:
    """The registered set that is the same one or has the same ranks."""
    return _registered(process_set.ranks, process_set, job)


def _registered(ranks: list[int], process_set: ProcessSet, job: state.Running) -> ProcessSet | None:
    for known in [global_process_set, *job.process_sets.values()]:
        if known is process_set or (ranks and known.has(ranks)):
            return known
    return None


def _forget_in_child(parents: state.Running, absence: str) -> None:
    _core.framework_forget_after_fork(absence)
    gone = AbsentGroup(NotInitializedError, absence)
    for process_set in parents.process_sets.values():
        process_set.unbind(gone)
    global_process_set.unbind(gone)


state.on_fork(_forget_in_child)
