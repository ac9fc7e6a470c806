"""The same start on all ranks: the model and the optimizer of one of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ringreduce.collectives import ops
from ringreduce.keras.active import keras, training
from ringreduce.keras.callbacks.fit_thread import FitThread
from ringreduce.keras.settings import check_variable


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Gives every rank the weights and the optimizer's variables of one rank when training begins. Collective.

    That is before the first batch, where all ranks have built the model by then (by an Input, a call, or Keras's
    trainer for torch and JAX); the optimizer is built here if it is not yet. Otherwise it is after the first batch, as
    in Horovod, whose step is then lost on all ranks but the root. Random seeds of layers such as Dropout stay each
    rank's own. Each fit() with this callback begins so: what one rank has loaded in between reaches the others, and so
    does what a callback of any place in the list has loaded in its on_train_begin().

    Args:
        root_rank: global rank whose variables they are.
        device: for Horovod's signature; without effect.
        local_variables: variables that stay each rank's own, or one.

    Raises:
        InvalidArgumentError: one of local_variables is no variable. In fit(): it is to broadcast after the first batch,
            and was given by itself, and not in a list.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Iterable[Any] | Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local: list[Any] = []
        self._is_decided = self._done = False  # whether to broadcast before the first batch; whether that is done
        self._thread = FitThread()
        if local_variables is None:
            local_variables = ()
        for one in [local_variables] if training.is_variable(local_variables) else local_variables:
            self.register_local_var(one)

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable out of the broadcast. Raises InvalidArgumentError for what is none."""
        check_variable(training, var, "BroadcastGlobalVariablesCallback")
        self._local.append(var)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._is_decided = self._done = False
        self._thread.begin()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not in on_train_begin(), in which callbacks that come later may load a model; and not in
        # on_train_batch_begin(), which Keras may call on another thread.
        if self._is_decided:
            return
        self._is_decided = True
        built = np.array([training.is_built(self.model)], np.int32)  # perhaps on the root alone, which has loaded it
        if ops.allreduce(built, op=ops.Min, name="ringreduce.keras.is_built")[0]:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._done:
            self._thread.check(self)
            self._broadcast()

    def _broadcast(self) -> None:
        training.broadcast(self.model, self.root_rank, self._local)
        self._done = True
