"""What a launcher's variables say of this process's place."""

from __future__ import annotations

from ringreduce.job.own_place import own_place

__all__ = ["get_env_rank_and_size"]


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as init() would find them; (0, 1) without a launcher.

    Raises:
        InvalidArgumentError: the variables contradict each other.
        UnavailableError: the job is on several hosts, and RINGREDUCE_TRANSPORT is shm.
    """
    place = own_place()
    return place.rank, place.size
