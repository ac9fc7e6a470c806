"""The best model so far, in a file."""

from __future__ import annotations

from typing import Any

from ringreduce.basics import rank
from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.active import keras


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc, unused-ignore]
    """Keras's ModelCheckpoint with save_best_only=True, on rank 0 only.

    After MetricAverageCallback in the list of callbacks it looks at the mean over all ranks.

    Args:
        monitor, verbose, mode, save_freq, save_weights_only: as of keras.callbacks.ModelCheckpoint.
        filepath: as there; Horovod's has none, and `callback.filepath = ...` may still set it before training.

    Raises:
        InvalidArgumentError: mode or save_weights_only is of another type, as in the order of arguments that
            ringreduce.tensorflow.keras has; in fit(), when there is no filepath.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
        save_weights_only: bool = False,
    ) -> None:
        if not isinstance(save_weights_only, bool) or not isinstance(mode, str):
            raise InvalidArgumentError(
                f"BestModelCheckpoint: mode is a string and save_weights_only a bool, not {mode!r} and "
                f"{save_weights_only!r}. The third argument is mode in ringreduce.keras, and save_weights_only in "
                "ringreduce.tensorflow.keras, as in Horovod: give both by name"
            )
        unset = "unset.weights.h5" if save_weights_only else "unset.keras"
        super().__init__(
            unset if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.filepath is None:
            raise InvalidArgumentError("BestModelCheckpoint: give filepath=, or set callback.filepath, before training")
        super().on_train_begin(logs)

    def _save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        if rank() == 0:
            super()._save_model(epoch, batch, logs)
