"""The reserved names of elastic training. Importing them is fine, using them says that it does not exist yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ringreduce.common.elastic import Reserved, unavailable

INSTEAD = (
    "save a checkpoint on rank 0, start the job again after a failure, and load it with broadcast_parameters() "
    "and broadcast_optimizer_state(); hvd.elastic.ElasticSampler goes on within the epoch, also with another "
    "number of ranks"
)


def run(func: Callable[..., Any]) -> NoReturn:
    """Horovod's decorator of an elastic training function. Raises UnavailableError where it is applied."""
    unavailable("run", INSTEAD)


class State(Reserved):
    """Horovod's base class of elastic state. Raises UnavailableError when instantiated."""

    instead = INSTEAD


class ObjectState(State):
    """Horovod's elastic state of plain objects. Raises UnavailableError when instantiated."""


class TorchState(ObjectState):
    """Horovod's elastic state of models, optimizers and samplers. Raises UnavailableError when instantiated."""
