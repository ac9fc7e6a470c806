"""What the ranks say about a process set that is to be registered, and the sets that come of it.

Each rank offers ranks of the job, the same on all of them, or the ranks of its own communicator, which may be one of
several. A communicator is read where it is (a group's ranks in MPI.COMM_WORLD are local knowledge), so that nothing
waits for a rank that offers something else: all offers are exchanged, and every rank comes to the same verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ringreduce import agreement, communicators
from ringreduce.errors import InvalidArgumentError, MismatchError


class Offer(NamedTuple):
    """One rank's; travels as JSON."""

    ranks: list[int]
    """Of the members: in the job, or in MPI.COMM_WORLD where a communicator names them."""
    world_rank: int | None
    """This rank in MPI.COMM_WORLD; None unless a communicator names the members."""
    handover: list[str]
    """Where the members of this host meet, should this rank turn out to be the first of them."""

    @classmethod
    def of_ranks(cls, ranks: list[int], rank: int) -> Offer:
        """Members given as ranks of the job."""
        return cls(ranks, None, _announced() if rank in ranks else [])

    @classmethod
    def of_communicator(cls, comm: Any) -> Offer:
        """Members given as an mpi4py communicator. Raises as communicators.world_ranks()."""
        return cls(sorted(communicators.world_ranks(comm)), communicators.world_rank(), _announced())

    def __str__(self) -> str:
        return f"ranks {self.ranks}" if self.world_rank is None else f"a communicator of MPI's ranks {self.ranks}"


def sets_of(offers: Sequence[Offer], rank: int) -> list[list[int]]:
    """The different sets on offer, as sorted ranks of the job: one given by ranks, any number by communicators.

    Args:
        offers: of all ranks.
        rank: this one.

    Raises, on all ranks alike, MismatchError when the offers do not fit together, InvalidArgumentError when a process
    of a communicator is no rank of the job.
    """
    mine = offers[rank]
    by_rank = mine.world_rank is None
    for other, offer in enumerate(offers):
        if (offer.world_rank is None) != by_rank or (by_rank and offer.ranks != mine.ranks):
            raise _mismatch(offers, rank, other)
    if by_rank:
        return [mine.ranks]
    places = {offer.world_rank: place for place, offer in enumerate(offers)}
    strangers = {world for offer in offers for world in offer.ranks} - places.keys()
    if strangers or len(places) < len(offers):
        raise InvalidArgumentError(
            "ProcessSet(comm): not all of its processes are ranks of this job that share one MPI.COMM_WORLD: "
            + "; ".join(f"rank {other} passed {offer}" for other, offer in enumerate(offers[:16]))
        )
    sets: list[list[int]] = []
    for other, offer in enumerate(offers):
        members = sorted(places[world] for world in offer.ranks)
        for member in members:
            if offers[member].ranks != offer.ranks:
                raise _mismatch(offers, other, member)
        if members and members not in sets:
            sets.append(members)
    return sets


def _mismatch(offers: Sequence[Offer], one: int, other: int) -> MismatchError:
    return MismatchError(
        f"Mismatched add_process_set: rank {one} passed {offers[one]}, but rank {other} passed {offers[other]}."
    )


def _announced() -> list[str]:
    return agreement.Handover.announce().to_json()
