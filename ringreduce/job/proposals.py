"""The process sets that the ranks propose, and the sets that are registered.

Each rank proposes ranks of the job, the same on all of them, or the ranks of its own communicator, which may be one of
several. A rank reads its communicator locally (a group's ranks in MPI.COMM_WORLD are local knowledge), so that nothing
waits for a rank that proposes something else. All ranks gather all proposals and reach the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job import collective_json, communicators


class Proposal(NamedTuple):
    """What one rank proposes; sent as JSON."""

    ranks: list[int]
    """Of the members: in the job, or in MPI.COMM_WORLD where a communicator names them."""
    world_rank: int | None
    """This rank in MPI.COMM_WORLD; None unless a communicator names the members."""
    fd_exchange: list[str]
    """Where the members of this host receive a descriptor, if this rank is the first of them."""

    @classmethod
    def of_ranks(cls, ranks: list[int], rank: int) -> Proposal:
        """Members given as ranks of the job."""
        return cls(ranks, None, _new_fd_exchange() if rank in ranks else [])

    @classmethod
    def of_communicator(cls, comm: Any) -> Proposal:
        """Members given as an mpi4py communicator. Raises as communicators.world_ranks()."""
        return cls(sorted(communicators.world_ranks(comm)), communicators.world_rank(), _new_fd_exchange())

    def __repr__(self) -> str:
        """Without the secret in fd_exchange."""
        return f"ranks {self.ranks}" if self.world_rank is None else f"a communicator of MPI's ranks {self.ranks}"


def sets_of(proposals: Sequence[Proposal], rank: int) -> list[list[int]]:
    """The different proposed sets, as sorted ranks of the job: one given by ranks, any number by communicators.

    Args:
        proposals: of all ranks.
        rank: this one.

    Raises, on all ranks alike, MismatchError when the proposals do not fit together, InvalidArgumentError when a
    process of a communicator is no rank of the job.
    """
    mine = proposals[rank]
    by_rank = mine.world_rank is None
    for other, proposal in enumerate(proposals):
        if (proposal.world_rank is None) != by_rank or (by_rank and proposal.ranks != mine.ranks):
            raise _mismatch(proposals, rank, other)
    if by_rank:
        return [mine.ranks]
    positions = {proposal.world_rank: position for position, proposal in enumerate(proposals)}
    unknown = {world for proposal in proposals for world in proposal.ranks} - positions.keys()
    if unknown or len(positions) < len(proposals):
        raise InvalidArgumentError(
            "ProcessSet(comm): not all of its processes are ranks of this job that share one MPI.COMM_WORLD: "
            + "; ".join(f"rank {other} passed {proposal}" for other, proposal in enumerate(proposals[:16]))
        )
    sets: list[list[int]] = []
    for other, proposal in enumerate(proposals):
        members = sorted(positions[world] for world in proposal.ranks)
        for member in members:
            if proposals[member].ranks != proposal.ranks:
                raise _mismatch(proposals, other, member)
        if members and members not in sets:
            sets.append(members)
    return sets


def _mismatch(proposals: Sequence[Proposal], one: int, other: int) -> MismatchError:
    return MismatchError(
        f"Mismatched add_process_set: rank {one} passed {proposals[one]}, but rank {other} passed {proposals[other]}."
    )


def _new_fd_exchange() -> list[str]:
    return collective_json.FdExchange.new().to_json()
