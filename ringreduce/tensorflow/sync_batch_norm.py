"""Batch normalization over the joined batch of all ranks, as a Keras layer.

Forward, each rank states count, mean and sum of squared deviations of its part, in one all-gather; everyone combines
them in the same way, so nothing cancels (Chan, Golub, LeVeque: Algorithms for computing the sample variance, 1983).
Backward, the gradients of mean and variance travel in one all-reduce. Keras does the rest.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.ops import Sum
from ringreduce.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow import mpi_ops
from ringreduce.tensorflow.variables import refuse_strategies


@keras.saving.register_keras_serializable(package="ringreduce")  # type: ignore[untyped-decorator, unused-ignore]
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """keras.layers.BatchNormalization whose statistics are those of all ranks' inputs together.

    In training every rank of the set calls it, forward and backward, as any collective; in inference it communicates
    nothing. The batch may differ between ranks, and may be empty. The gradients of gamma and beta are this rank's own,
    for the tape or the optimizer to reduce.

    Args:
        fused: Horovod's; must be False.
        process_set: the ranks that take part; a layer that is loaded from a file has all of them.
        kwargs: keras.layers.BatchNormalization's: axis, momentum, epsilon, ...

    Raises:
        InvalidArgumentError: fused is True or None, or synchronized=True, which is for tf.distribute.
        UnavailableError: Keras runs on another backend than TensorFlow.
    """

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused in (True, None):
            raise InvalidArgumentError("SyncBatchNormalization does not support fused=True.")
        if kwargs.pop("synchronized", False):
            raise InvalidArgumentError(
                "SyncBatchNormalization: synchronized=True is for tf.distribute; leave it out, ranks are synchronized"
            )
        if keras.backend.backend() != "tensorflow":
            raise UnavailableError(
                f"SyncBatchNormalization needs Keras on TensorFlow; KERAS_BACKEND is {keras.backend.backend()}"
            )
        super().__init__(**kwargs)
        self.process_set = process_set

    def get_config(self) -> dict[str, Any]:
        """Keras's, without what is for tf.distribute. The process set is not saved."""
        config: dict[str, Any] = super().get_config()
        config.pop("synchronized", None)
        return config

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel, over all ranks; what Keras asks for in training."""
        refuse_strategies("SyncBatchNormalization", [self.moving_mean])
        if self.process_set.size() == 1 and mask is None:
            plain: tuple[tf.Tensor, tf.Tensor] = super()._moments(inputs, mask)
            return plain
        weights = None
        if mask is not None:
            weights = tf.cast(tf.expand_dims(mask, -1), inputs.dtype) * tf.ones_like(inputs)
        mean, variance = _moments(inputs, weights, list(self._reduction_axes), self.process_set)
        return mean, variance


def _moments(
    inputs: tf.Tensor, weights: tf.Tensor | None, axes: list[int], process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all ranks' inputs together. Weights are 0 or 1, one for each element, or None: all 1."""

    # Keras numbers its layers, and a rank may have made more of them: their names must not get into the operations'.
    settings: dict[str, Any] = {"ignore_name_scope": True, "process_set": process_set}

    def forward(values: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        counts, means, m2s = _combined(mpi_ops.allgather(_statistics(values, weights, axes), **settings))
        mean = tf.cast(means, values.dtype)
        variance = tf.cast(m2s / counts, values.dtype)

        def backward(mean_grad: tf.Tensor, variance_grad: tf.Tensor) -> tf.Tensor:
            grads = mpi_ops._allreduce(tf.stack([mean_grad, variance_grad]), op=Sum, **settings)
            grads = tf.cast(tf.cast(grads, tf.float64) / counts, values.dtype)  # of one value's part in the mean
            slope = _along(2.0 * grads[1], values, axes)
            grad = _along(grads[0], values, axes) + slope * (values - _along(mean, values, axes))
            return grad if weights is None else grad * weights

        return (mean, variance), backward

    moments: tuple[tf.Tensor, tf.Tensor] = tf.custom_gradient(forward)(inputs)
    return moments


def _along(channels: tf.Tensor, like: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """A value per channel, to be broadcast over a tensor."""
    return tf.reshape(channels, [1 if axis in axes else -1 for axis in range(like.shape.rank)])


def _statistics(inputs: tf.Tensor, weights: tf.Tensor | None, axes: list[int]) -> tf.Tensor:
    """This rank's rows: each channel's count, mean, and sum of squared deviations. float64, of shape (1, 3, C)."""
    if weights is None:
        sizes = tf.gather(tf.shape(inputs, out_type=tf.int64), axes)
        (channel,) = set(range(inputs.shape.rank)) - set(axes)
        counts = tf.fill([tf.shape(inputs)[channel]], tf.cast(tf.reduce_prod(sizes), tf.float64))
    else:
        inputs = tf.where(weights > 0, inputs, 0)
        counts = tf.reduce_sum(tf.cast(weights, tf.float64), axes)
    some = tf.maximum(counts, 1.0)
    mean = tf.cast(tf.cast(tf.reduce_sum(inputs, axes), tf.float64) / some, inputs.dtype)
    centred = inputs - _along(mean, inputs, axes)
    if weights is not None:
        centred *= weights
    # The mean is rounded to the inputs' dtype there; what the deviations say about it is put back.
    left = tf.cast(tf.reduce_sum(centred, axes), tf.float64) / some
    m2 = tf.cast(tf.reduce_sum(centred * centred, axes), tf.float64) - counts * left * left
    return tf.stack([counts, tf.cast(mean, tf.float64) + left, tf.maximum(m2, 0.0)])[tf.newaxis]


def _combined(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Count (at least 1), mean and sum of squared deviations of each channel, over all ranks."""
    counts, means, m2s = tf.unstack(rows, axis=1)
    count = tf.maximum(tf.reduce_sum(counts, 0), 1.0)
    mean = tf.reduce_sum(counts * means, 0) / count
    distances = means - mean
    return count, mean, tf.reduce_sum(m2s + counts * distances * distances, 0)
