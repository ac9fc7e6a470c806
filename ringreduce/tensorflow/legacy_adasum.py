"""DistributedOptimizer(op=Adasum) for optimizers of TensorFlow 1: ranks step alone, then their changes are combined.

As in Horovod, and in ringreduce.torch: no gradient is reduced, momenta stay each rank's own, and of the changes of a
variable Adasum takes the sum where they are orthogonal and the mean where they are parallel.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Adasum
from ringreduce.common.adasum import check_size
from ringreduce.common.groups import mark_of
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow.collectives import grouped_allreduce
from ringreduce.tensorflow.compression import Compressor
from ringreduce.tensorflow.first_step import FirstStep
from ringreduce.tensorflow.functions import assigned
from ringreduce.tensorflow.legacy import Wrapper
from ringreduce.tensorflow.variables import plain, refuse_strategies


class _DistributedAdasumOptimizer(Wrapper):
    """Wraps an optimizer: what a step changes on each rank is combined by Adasum.

    Args:
        optimizer, name, use_locking: see Wrapper; compute_gradients() is the optimizer's.
        compression: applied to the changes before, and undone after.
        process_set: the ranks that take part.
    """

    def __init__(
        self, optimizer: Any, name: str, use_locking: bool, compression: type[Compressor], process_set: ProcessSet
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._compression = compression
        self._process_set = process_set
        self._first_step = FirstStep(name, process_set)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's gradients, this rank's own.

        Raises:
            InvalidArgumentError: a MixedPrecisionLossScaleOptimizer would leave out steps on some of the ranks.
        """
        self._check_scale(self._process_set, "op=hvd.Adasum")
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """A step of the wrapped optimizer, and the variables' changes combined over the ranks. Collective.

        Raises:
            PowerOfTwoError (a NotImplementedError): the set's number of ranks is no power of two.
        """
        pairs = list(grads_and_vars)
        variables = [plain(variable) for grad, variable in pairs if grad is not None]
        refuse_strategies("DistributedOptimizer", variables)
        if not self._process_set.included():
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        check_size(self._process_set.group.size)
        before = [_copied(variable) for variable in variables]
        with tf.control_dependencies(before):
            step = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
        with tf.control_dependencies([] if step is None else [step]):
            changes = [variable.read_value() - old for variable, old in zip(variables, before, strict=True)]
        mark = mark_of([at for at, (grad, _) in enumerate(pairs) if grad is not None], len(pairs))
        marks = [] if mark is None else [tf.zeros((0, mark), changes[0].dtype if changes else tf.float32)]
        combined = grouped_allreduce(
            changes + marks, op=Adasum, compression=self._compression, process_set=self._process_set
        )[: len(changes)]
        done = [assigned(*item) for item in zip(variables, map(tf.add, before, combined), strict=True)]
        step = None if tf.executing_eagerly() else tf.group(*done)
        return self._first_step.after(step, variables, None)


def _copied(variable: Any) -> tf.Tensor:
    """The value before the step. Without resources a read gives the memory that the step changes."""
    value = variable.read_value()
    return tf.raw_ops.DeepCopy(x=value) if variable.dtype._is_ref_dtype else tf.identity(value)
