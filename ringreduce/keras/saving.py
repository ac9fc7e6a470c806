"""Models from files, with their optimizers distributed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import keras

from ringreduce import config
from ringreduce.basics import is_initialized, rank
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.keras.compression import Compression
from ringreduce.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    backward_passes_per_step: int | None = None,
    average_aggregated_gradients: bool | None = None,
) -> Any:
    """keras.models.load_model(), and the model's optimizer, with its state, in a DistributedOptimizer.

    Reads a file of any model, whether or not its optimizer was distributed. Files say nothing of what
    DistributedOptimizer was given, but for backward_passes_per_step, which is the optimizer's own
    gradient_accumulation_steps there: whether the gradients of these passes are added up is to be given again, and
    where neither argument about it is, Keras's mean is taken, with a warning.

    Args:
        filepath: of a .keras or .h5 file; each rank reads it.
        custom_optimizers: classes of optimizers that are not Keras's.
        custom_objects: other classes and functions by name, as keras.models.load_model() takes them.
        compression: as of DistributedOptimizer.
        legacy_opts: must be False.
        backward_passes_per_step: as of DistributedOptimizer; None: as in the file.
        average_aggregated_gradients: as of DistributedOptimizer.

    Raises:
        InvalidArgumentError: backward_passes_per_step is not what the file has.
        UnavailableError: legacy_opts, which Keras 3 has not.
    """
    if legacy_opts:
        raise UnavailableError("legacy_opts: Keras 3 has no legacy optimizers; save the model with one of Keras 3")
    known = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        accumulated = getattr(optimizer, "inner_optimizer", optimizer).gradient_accumulation_steps or 1
        passes, mean = backward_passes_per_step, average_aggregated_gradients
        if passes is None and mean is None:
            _warn_of_mean(accumulated)
            mean = True
        if passes is not None and accumulated not in (1, passes):
            raise InvalidArgumentError(
                f"backward_passes_per_step={passes}, and the optimizer in the file has "
                f"gradient_accumulation_steps={accumulated}: give that, or leave it out"
            )
        model.optimizer = DistributedOptimizer(
            optimizer,
            compression=compression,
            backward_passes_per_step=accumulated if passes is None else passes,
            average_aggregated_gradients=bool(mean),
        )
    return model


def _warn_of_mean(passes: int) -> None:
    """One warning in the job, where a step has several passes."""
    if passes > 1 and not (is_initialized() and rank() > 0):
        warnings.warn(
            f"load_model: the optimizer in the file has gradient_accumulation_steps={passes}, and the mean of these "
            "passes is taken. Where it was a DistributedOptimizer with backward_passes_per_step, which adds them up, "
            f"give backward_passes_per_step={passes}; average_aggregated_gradients=True says that the mean is right",
            RuntimeWarning,
            stacklevel=config.users_level(),
        )
