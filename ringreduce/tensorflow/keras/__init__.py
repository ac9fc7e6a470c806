"""ringreduce.keras under the name that scripts for tf.keras import, with Horovod's order of arguments there.

    import ringreduce.tensorflow.keras as hvd

tf.keras is Keras 3 since TensorFlow 2.16, or Keras 2 where TF_USE_LEGACY_KERAS=1. Whichever backend Keras 3 has is the
one that is used; in a program of tf.keras that is TensorFlow's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce import keras
from ringreduce.keras import *  # type: ignore[assignment]  # noqa: F403  # its __all__ is this one's
from ringreduce.keras import Average, Compression, ProcessSet, global_process_set

# isort: split
# Not `from ... import`, which would find the modules of these names that the `*` above has put here.
import ringreduce.tensorflow.keras.callbacks as callbacks  # type: ignore[no-redef]  # noqa: F401
import ringreduce.tensorflow.keras.elastic as elastic  # type: ignore[no-redef]  # noqa: F401

__all__ = list(keras.__all__)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """ringreduce.keras.DistributedOptimizer(), with its arguments in another order."""
    return keras.DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        num_groups,
        groups,
        backward_passes_per_step,
        average_aggregated_gradients,
        process_set,
        scale_local_gradients,
    )
