"""What a launcher's variables say of this process's place."""

from __future__ import annotations

import os

from ringreduce.job import environment

__all__ = ["get_env_rank_and_size"]


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as init() would find them; (0, 1) without a launcher.

    Raises:
        InvalidArgumentError: the variables contradict each other.
    """
    place = environment.detect(environ=os.environ)
    return place.rank, place.size
