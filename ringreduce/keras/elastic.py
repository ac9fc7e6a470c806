"""The reserved names of elastic training. Importing them is fine, using them says that it does not exist yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ringreduce.common.elastic import Reserved, unavailable

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]


INSTEAD = (
    "keras.callbacks.ModelCheckpoint on rank 0, start the job again after a failure, load the file with "
    "hvd.load_model() on all ranks, and go on with fit(initial_epoch=...)"
)


def run(func: Callable[..., Any]) -> NoReturn:
    """Horovod's decorator of an elastic training function. Raises UnavailableError where it is applied."""
    unavailable("run", INSTEAD)


class _Reserved(Reserved):
    instead = INSTEAD


class KerasState(_Reserved):
    """Horovod's elastic state of a model and its optimizer. Raises UnavailableError when instantiated."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__()


class CommitStateCallback(_Reserved):
    """Horovod's callback that commits a state every few batches. Raises UnavailableError when instantiated."""

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()


class UpdateBatchStateCallback(_Reserved):
    """Horovod's callback that counts batches in a state. Raises UnavailableError when instantiated."""

    def __init__(self, state: Any) -> None:
        super().__init__()


class UpdateEpochStateCallback(_Reserved):
    """Horovod's callback that counts epochs in a state. Raises UnavailableError when instantiated."""

    def __init__(self, state: Any) -> None:
        super().__init__()
