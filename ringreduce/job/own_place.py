"""This process's place, as init() finds it without arguments: for who asks before init(), or without it."""

from __future__ import annotations

from ringreduce import config
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.environment import Placement, detect


def own_place() -> Placement:
    """Where this process stands in its job, which may be on several hosts. Raises as detect()."""
    try:
        network = config.choice("RINGREDUCE_TRANSPORT") != "shm"
    except InvalidArgumentError:  # init() says so
        network = True
    return detect(network=network)
