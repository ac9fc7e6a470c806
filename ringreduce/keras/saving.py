"""Models from files, with their optimizers distributed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from ringreduce.errors import UnavailableError
from ringreduce.keras.compression import Compression
from ringreduce.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """keras.models.load_model(), and the model's optimizer, with its state, in a DistributedOptimizer.

    Reads a file of any model, whether or not its optimizer was distributed. Files say nothing of what
    DistributedOptimizer was given, but for backward_passes_per_step, which is the optimizer's own
    gradient_accumulation_steps there.

    Args:
        filepath: of a .keras or .h5 file; each rank reads it.
        custom_optimizers: classes of optimizers that are not Keras's.
        custom_objects: other classes and functions by name, as keras.models.load_model() takes them.
        compression: as of DistributedOptimizer.
        legacy_opts: must be False.

    Raises:
        UnavailableError: legacy_opts, which Keras 3 has not.
    """
    if legacy_opts:
        raise UnavailableError("legacy_opts: Keras 3 has no legacy optimizers; save the model with one of Keras 3")
    known = {one.__name__: one for one in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        model.optimizer = DistributedOptimizer(optimizer, compression=compression)
    return model
