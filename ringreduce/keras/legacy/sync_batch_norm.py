"""Batch normalization over the joined batch of all ranks, as a layer of Keras 2."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tf_keras

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.moments import along, moments_of_all
from ringreduce.tensorflow.variables import refuse_strategies


@tf_keras.saving.register_keras_serializable(package="ringreduce")  # type: ignore[untyped-decorator, unused-ignore]
class SyncBatchNormalization(tf_keras.layers.BatchNormalization):  # type: ignore[misc]
    """tf_keras.layers.BatchNormalization whose statistics are those of all ranks' inputs together.

    In training every rank of the set calls it, forward and backward, as any collective; in inference it communicates
    nothing. The batch may differ between ranks, and may be empty.

    Args:
        fused: Horovod's; must be False.
        process_set: the ranks that take part; a layer that is loaded from a file has all of them.
        kwargs: tf_keras.layers.BatchNormalization's: axis, momentum, epsilon, ...

    Raises:
        InvalidArgumentError: fused is True or None, or synchronized=True, which is for tf.distribute.
    """

    def __init__(self, fused: bool | None = False, process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        if fused in (True, None):
            raise InvalidArgumentError("SyncBatchNormalization does not support fused=True.")
        if kwargs.pop("synchronized", False):
            raise InvalidArgumentError(
                "SyncBatchNormalization: synchronized=True is for tf.distribute; leave it out, ranks are synchronized"
            )
        super().__init__(fused=False, **kwargs)
        self.process_set = process_set

    def _calculate_mean_and_var(
        self, inputs: tf.Tensor, reduction_axes: Any, keep_dims: bool, mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel, over all ranks; what Keras asks for in training."""
        refuse_strategies("SyncBatchNormalization", [self.moving_mean])
        if self.process_set.size() == 1 and mask is None:
            plain: tuple[tf.Tensor, tf.Tensor] = super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims)
            return plain
        weights = None
        if mask is not None:
            weights = tf.cast(tf.expand_dims(mask, -1), inputs.dtype) * tf.ones_like(inputs)
        axes = [int(axis) for axis in reduction_axes]
        mean, variance = moments_of_all(inputs, weights, axes, self.process_set)
        if keep_dims:
            return along(mean, axes), along(variance, axes)
        return mean, variance
