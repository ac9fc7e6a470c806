"""What Keras's backends have in common: the few collectives that run within a training step.

One module for each backend (on_torch.py, on_tensorflow.py, on_jax.py) has them; only that of the active one is
imported. Everything outside of a step (broadcasts, metrics) goes through NumPy and needs none of them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

import keras

from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet

BACKENDS = ("tensorflow", "torch", "jax")


class Backend(Protocol):
    """What a backend's module has. Tensors are its own; op is Average, Sum, Min or Max."""

    def check(self) -> None:
        """Raises UnavailableError where a step cannot communicate, such as under XLA in TensorFlow."""

    def grouped_allreduce(
        self,
        tensors: Sequence[Any],
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> list[Any]:
        """Dense tensors, reduced as one operation. May overwrite them."""
        ...

    def is_traced(self, tensors: Sequence[Any]) -> bool:
        """Whether they stand for values in a step that is being compiled."""
        ...

    def is_sparse(self, tensor: Any) -> bool: ...

    def dense(self, tensor: Any) -> Any: ...

    def divided(self, tensor: Any, number: int) -> Any:
        """A tensor, dense or sparse, by a number."""
        ...

    def sparse_allreduce(self, tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
        """A sparse tensor, reduced by gathering indices and values, which travel without compression."""
        ...

    def allgather(self, tensor: Any, name: str | None, process_set: ProcessSet) -> Any: ...

    def broadcast(self, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any: ...

    def reducescatter(self, tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any: ...


@functools.cache
def active() -> Backend:
    """The active backend's. Raises UnavailableError for a backend without one."""
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise UnavailableError(
            f"ringreduce.keras is for the backends {', '.join(BACKENDS)} of Keras, and this process has {name!r}: set "
            "KERAS_BACKEND before keras is imported"
        )
    return cast(Backend, importlib.import_module(f"ringreduce.keras.on_{name}"))
