"""Learning rates that follow a multiplier, and the gradual warm-up of arXiv:1706.02677."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ringreduce import config
from ringreduce.basics import is_initialized, rank, size
from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.active import keras, training


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Sets the learning rate to initial_lr * multiplier(epoch) for some epochs.

    Args:
        initial_lr: with which the multiplier is multiplied; often 0.1 * hvd.size().
        multiplier: a function of the epoch, counted from 0; or a number, the same for all of these epochs. Horovod 0.23
            and newer make number ** (epoch - start_epoch) of it, so one that is not 1 gives a RuntimeWarning.
        start_epoch, end_epoch: the first epoch, and the first one that is left alone again (None: none is).
        staircase: sets it once an epoch; otherwise before every batch, and multiplier gets fractions of epochs.
        momentum_correction: when the learning rate changes, scales what SGD and RMSprop remember of former steps
            (with a momentum) likewise, as that has the former rate in it.
        steps_per_epoch: batches in an epoch, for staircase=False; None asks fit().

    Raises:
        InvalidArgumentError: initial_lr is None; or, in fit(), the optimizer has a LearningRateSchedule, or the number
            of batches is unknown.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Callable[[float], float] | float,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise InvalidArgumentError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if not callable(multiplier) and multiplier != 1:
            _warn_of_number(multiplier, start_epoch)
        self.multiplier: Callable[[float], float] = multiplier if callable(multiplier) else lambda _: multiplier

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise InvalidArgumentError(
                "Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to "
                f"the {type(self).__name__}()"
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(self.multiplier(epoch + batch / (self.steps_per_epoch or 1)))
        elif batch == 0:
            self._set(self.multiplier(epoch))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = training.learning_rate(self.model)

    def _set(self, multiplier: float) -> None:
        old, new = training.learning_rate(self.model), self.initial_lr * multiplier
        if new == old:
            return
        optimizer: Any = self.model.optimizer
        try:
            optimizer.learning_rate = new
        except (TypeError, AttributeError) as error:
            raise InvalidArgumentError(
                f"{type(self).__name__} sets the learning rate, which this optimizer does not allow: {error}"
            ) from error
        if self.momentum_correction and old:
            training.scale_momentum(optimizer, new / old)


def _warn_of_number(multiplier: float, start_epoch: int) -> None:
    """One warning in the job: Horovod documents a constant, and computes another one in each epoch."""
    if is_initialized() and rank() > 0:
        return
    warnings.warn(
        f"LearningRateScheduleCallback(multiplier={multiplier!r}): the learning rate is initial_lr * {multiplier!r} in "
        "all epochs of the callback, as Horovod's documentation says. Horovod 0.23 and newer compute initial_lr * "
        f"{multiplier!r} ** (epoch - {start_epoch}): for that give multiplier=lambda epoch: {multiplier!r} ** (epoch - "
        f"{start_epoch}). For the constant without this warning give multiplier=lambda epoch: {multiplier!r}",
        RuntimeWarning,
        stacklevel=config.users_level(),
    )


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from initial_lr / size to initial_lr over the first epochs, batch by batch.

    Before batch b of epoch e, with s batches to an epoch, it is
    initial_lr / size * ((e + (b + 1) / s) * (size - 1) / warmup_epochs + 1); so an epoch ends at a round number.

    Args:
        initial_lr: the rate at the end, for all ranks together: 0.1 * hvd.size(), where one rank would take 0.1.
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as of LearningRateScheduleCallback.
        verbose: 1 prints a line on rank 0 when the warm-up is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1 / (self.steps_per_epoch or 1)
            return (epoch * (size() - 1) / warmup_epochs + 1) / size()

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch + 1 == self.end_epoch and self.verbose > 0 and rank() == 0:
            rate = training.learning_rate(self.model)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")
