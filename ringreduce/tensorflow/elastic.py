"""The reserved names of elastic training. Importing them is fine, using them says that it does not exist yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ringreduce.common.elastic import Reserved, unavailable

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


INSTEAD = (
    "save a checkpoint on rank 0, start the job again after a failure, load the checkpoint there and hand it "
    "on with broadcast_variables()"
)


def run(func: Callable[..., Any]) -> NoReturn:
    """Horovod's decorator of an elastic training function. Raises UnavailableError where it is applied."""
    unavailable("run", INSTEAD)


class State(Reserved):
    """Horovod's base class of elastic state. Raises UnavailableError when instantiated."""

    instead = INSTEAD


class ObjectState(State):
    """Horovod's elastic state of plain objects. Raises UnavailableError when instantiated."""


class TensorFlowKerasState(ObjectState):
    """Horovod's elastic state of a Keras model and its optimizer. Raises UnavailableError when instantiated."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, backend, **kwargs)


class TensorFlowState(ObjectState):
    """Horovod's elastic state of variables. Raises UnavailableError when instantiated."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        super().__init__(variables, session, **kwargs)
