"""Batch normalization over the joined batch of all ranks, as a layer of Keras 3; keras/legacy/ has Keras 2's."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.moments import moments_of_all
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
        mean, variance = moments_of_all(inputs, weights, list(self._reduction_axes), self.process_set)
        return mean, variance
