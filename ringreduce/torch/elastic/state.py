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


def run_fn(func: Callable[..., Any], reset: Callable[..., Any]) -> NoReturn:
    """Horovod's wrapper of an elastic training function. Raises UnavailableError."""
    unavailable("run_fn", INSTEAD)


class State(Reserved):
    """Horovod's base class of elastic state. Raises UnavailableError when instantiated."""

    instead = INSTEAD


class ObjectState(State):
    """Horovod's elastic state of plain objects. Raises UnavailableError when instantiated."""


class TorchState(ObjectState):
    """Horovod's elastic state of models, optimizers and samplers. Raises UnavailableError when instantiated."""


class StateHandler(Reserved):
    """Horovod's base class of what keeps one value. Raises UnavailableError when instantiated."""

    instead = INSTEAD


class ModelStateHandler(StateHandler):
    """Horovod's handler of a model. Raises UnavailableError when instantiated."""


class OptimizerStateHandler(StateHandler):
    """Horovod's handler of an optimizer. Raises UnavailableError when instantiated."""


class SamplerStateHandler(StateHandler):
    """Horovod's handler of an ElasticSampler. Raises UnavailableError when instantiated."""


def get_handler_registry() -> NoReturn:
    """Horovod's list of types and their handlers. Raises UnavailableError."""
    unavailable("state.get_handler_registry", INSTEAD)


def set_handler_registry(registry: Any) -> NoReturn:
    """Horovod's way to other handlers. Raises UnavailableError."""
    unavailable("state.set_handler_registry", INSTEAD)
