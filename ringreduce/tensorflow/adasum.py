"""op=Adasum for tensors of TensorFlow: gathered, and combined by each rank as ringreduce/common/adasum.py says.

Not differentiable. Each rank moves and holds N times the bytes of the tensors, so it is for a few ranks. The combining
runs in NumPy, in a graph as tf.numpy_function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ringreduce.common.adasum import check_size, combine
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow import mpi_ops


def allreduce(
    tensors: Sequence[tf.Tensor],
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    """Each tensor by itself.

    Raises:
        InvalidArgumentError: a dtype that is not floating point.
        PowerOfTwoError (a NotImplementedError): the set's number of ranks is no power of two.
    """
    check_size(process_set.group.size)
    for tensor in tensors:
        if not tensor.dtype.is_floating:
            raise InvalidArgumentError(f"op=Adasum is for floating-point tensors, not {tensor.dtype.name}")
    scaled = [tensor * tf.constant(prescale_factor, tensor.dtype) for tensor in tensors]
    rows = mpi_ops.grouped_allgather(
        [one[tf.newaxis] for one in scaled], name=name, ignore_name_scope=ignore_name_scope, process_set=process_set
    )
    return [_combined(row, tensor, postscale_factor) for row, tensor in zip(rows, tensors, strict=True)]


def _combined(rows: tf.Tensor, like: tf.Tensor, factor: float) -> tf.Tensor:
    def compute(wide: Any) -> Any:
        return (combine(list(wide.reshape(len(wide), -1))) * factor).reshape(wide.shape[1:])

    wide = tf.cast(rows, tf.float64)
    together = (
        tf.numpy_function(compute, [wide], tf.float64) if not tf.executing_eagerly() else compute(np.asarray(wide))
    )
    result = tf.cast(together, like.dtype)
    result.set_shape(like.shape)
    return result
