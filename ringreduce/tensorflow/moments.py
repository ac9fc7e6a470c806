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
    """Mean and variance of all ranks' inputs together. Weights are 0 or 1, one for each element, or None: all 1."""

    def forward(values: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Any]:
        counts, means, m2s = _combined(mpi_ops.allgather(_statistics(values, weights, axes), process_set=process_set))
        mean = tf.cast(means, values.dtype)
        variance = tf.cast(m2s / counts, values.dtype)

        def backward(mean_grad: tf.Tensor, variance_grad: tf.Tensor) -> tf.Tensor:
            grads = mpi_ops._allreduce(tf.stack([mean_grad, variance_grad]), op=Sum, process_set=process_set)
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
