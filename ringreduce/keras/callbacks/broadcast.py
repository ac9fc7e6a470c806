"""The same start on all ranks: the model and the optimizer of one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ringreduce.collectives import ops
from ringreduce.keras.active import keras, training


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Gives every rank the weights and the optimizer's variables of one rank when training begins. Collective.

    That is before the first batch, where all ranks have built the model by then (by an Input, a call, or Keras's
    trainer for torch and JAX); the optimizer is built here if it is not yet. Otherwise it is after the first batch, as
    in Horovod, whose step is then lost on all ranks but the root. Random seeds of layers such as Dropout stay each
    rank's own.

    Args:
        root_rank: global rank whose variables they are.
        device: for Horovod's signature; without effect.
        local_variables: variables that stay each rank's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = list(local_variables or ())
        self._done = False

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable out of the broadcast."""
        self._local.append(var)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._done = False
        built = np.array([training.is_built(self.model)], np.int32)  # perhaps on the root alone, which has loaded it
        if ops.allreduce(built, op=ops.Min, name="ringreduce.keras.is_built")[0]:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        training.broadcast(self.model, self.root_rank, self._local)
        self._done = True
