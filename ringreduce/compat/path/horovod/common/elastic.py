"""The reserved names of elastic training that belong to no framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ringreduce.common.elastic import Reserved, unavailable
from ringreduce.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]

INSTEAD = "save a checkpoint on rank 0, start the job again after a failure, and load the checkpoint on every rank"


def run_fn(func: Callable[..., Any], reset: Callable[..., Any]) -> NoReturn:
    """Horovod's wrapper of an elastic training function. Raises UnavailableError."""
    unavailable("run_fn", INSTEAD)


class State(Reserved):
    """Horovod's base class of elastic state. Raises UnavailableError when instantiated."""

    instead = INSTEAD


class ObjectState(State):
    """Horovod's elastic state of plain objects. Raises UnavailableError when instantiated."""
