"""Models of Keras 2 from files, with their optimizers distributed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tf_keras

from ringreduce.keras.legacy.distributed import DistributedMixin
from ringreduce.keras.legacy.optimizer import DistributedOptimizer
from ringreduce.tensorflow.compression import Compression


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    backward_passes_per_step: int | None = None,
    average_aggregated_gradients: bool | None = None,
) -> Any:
    """tf_keras.models.load_model(), and the model's optimizer, with its state, in a DistributedOptimizer.

    Reads a file of any model, whether or not its optimizer was distributed; files say nothing of what
    DistributedOptimizer was given.

    Args:
        filepath: of a .keras or .h5 file, or a SavedModel's folder; each rank reads it.
        custom_optimizers: classes of optimizers that are not Keras's.
        custom_objects: classes and functions by name; one may give a DistributedOptimizer, which is left as it is.
        compression: as of DistributedOptimizer.
        legacy_opts: for Horovod's signature: optimizers of either kind are found.
        backward_passes_per_step, average_aggregated_gradients: as of DistributedOptimizer.
    """
    known = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = tf_keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is not None and not isinstance(inner, DistributedMixin):
        model.optimizer = DistributedOptimizer(
            optimizer,
            compression=compression,
            backward_passes_per_step=backward_passes_per_step or 1,
            average_aggregated_gradients=bool(average_aggregated_gradients),
        )
    return model
