"""Mean and variance of each channel over the joined batch of all ranks, differentiable: for SyncBatchNormalization.

Forward, each rank states count, mean and sum of squared deviations of its part, in one all-gather; everyone combines
them in the same way, so nothing cancels (Chan, Golub, LeVeque: Algorithms for computing the sample variance, 1983).
Backward, the gradients of mean and variance travel in one all-reduce.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Sum
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow import mpi_ops


def moments_of_all(
    inputs: tf.Tensor, weights: tf.Tensor | None, axes: list[int], process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all ranks' inputs together.

    Args:
        inputs: this rank's.
        weights: 0 or 1, one for each element, or None: all 1.
        axes: along which a channel's elements are, in ascending order. The others are one axis of channels or several.
        process_set: the ranks that take part.
    """

    def forward(values: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        counts, means, m2s = _combined(mpi_ops.allgather(_statistics(values, weights, axes), process_set=process_set))
        mean = tf.cast(means, values.dtype)
        variance = tf.cast(m2s / counts, values.dtype)

        def backward(mean_grad: tf.Tensor, variance_grad: tf.Tensor) -> tf.Tensor:
            grads = mpi_ops._allreduce(tf.stack([mean_grad, variance_grad]), op=Sum, process_set=process_set)
            grads = tf.cast(tf.cast(grads, tf.float64) / counts, values.dtype)  # of one value's part in the mean
            slope = along(2.0 * grads[1], axes)
            grad = along(grads[0], axes) + slope * (values - along(mean, axes))
            return grad if weights is None else grad * weights

        return (mean, variance), backward

    moments: tuple[tf.Tensor, tf.Tensor] = tf.custom_gradient(forward)(inputs)
    return moments


def along(channels: tf.Tensor, axes: list[int]) -> tf.Tensor:
    """A value per channel, to be broadcast over a tensor that has these axes too, in ascending order."""
    for axis in axes:
        channels = tf.expand_dims(channels, axis)
    return channels


def _statistics(inputs: tf.Tensor, weights: tf.Tensor | None, axes: list[int]) -> tf.Tensor:
    """This rank's row: each channel's count, mean, sum of squared deviations. float64, of shape (1, 3, *channels)."""
    if weights is None:
        sizes = tf.gather(tf.shape(inputs, out_type=tf.int64), axes)
        channels = [axis for axis in range(inputs.shape.rank) if axis not in axes]
        counts = tf.fill(tf.gather(tf.shape(inputs), channels), tf.cast(tf.reduce_prod(sizes), tf.float64))
    else:
        inputs = tf.where(weights > 0, inputs, 0)
        counts = tf.reduce_sum(tf.cast(weights, tf.float64), axes)
    some = tf.maximum(counts, 1.0)
    mean = tf.cast(tf.cast(tf.reduce_sum(inputs, axes), tf.float64) / some, inputs.dtype)
    centred = inputs - along(mean, axes)
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
