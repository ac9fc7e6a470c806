"""DistributedOptimizer: the one name for the optimizers of Keras and of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Adasum, Average
from ringreduce.common.arguments import check_compression, check_predivide, whole_passes
from ringreduce.common.groups import renamed
from ringreduce.common.which_keras import is_of_keras_2
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.compression import Compression, Compressor
from ringreduce.tensorflow.gradients import GradientReducer
from ringreduce.tensorflow.legacy import Wrapper, _DistributedOptimizer
from ringreduce.tensorflow.legacy_adasum import _DistributedAdasumOptimizer


class AdasumError(UnavailableError, ValueError):
    """op=Adasum with an optimizer of Keras. Horovod raises ValueError."""


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer: gradients are reduced over the ranks, in one operation a step, before they are applied.

    Args:
        optimizer: of Keras (tf.keras.optimizers), wrapped by ringreduce.tensorflow.keras.DistributedOptimizer; or of
            TensorFlow 1 (tf.compat.v1.train), wrapped here.
        name: of the wrapper; default: "Distributed" and the optimizer's class.
        use_locking: for an optimizer of TensorFlow 1.
        device_dense, device_sparse: where TensorFlow places the operations; "" leaves that to it.
        compression: applied before, and undone after.
        sparse_as_dense: whether IndexedSlices become dense tensors first; else they are gathered.
        backward_passes_per_step: passes whose gradients are added up on the rank before they are reduced.
        op: Average (default) or Sum, ...; Adasum, for an optimizer of TensorFlow 1, combines what the ranks' own steps
            have changed.
        gradient_predivide_factor: with op=Average, part of the division that comes before the sum.
        average_aggregated_gradients: whether the sums of these passes are divided by their number.
        num_groups: deprecated; groups.
        groups: None for one operation a step; a number of operations; or a list of lists of variables, each an
            operation, and one more for the rest.
        process_set: the ranks that take part; the others apply their own gradients.
        scale_local_gradients: whether gradients of variables given to register_local_var() are divided by the number
            of ranks.

    Raises:
        InvalidArgumentError: no such optimizer, or options that do not go together.
        AdasumError (a ValueError): op=Adasum with an optimizer of Keras.
        UnavailableError: op=Adasum with groups or several passes.
    """
    check_predivide(op, gradient_predivide_factor)
    groups = renamed(num_groups, groups)
    backward_passes_per_step = whole_passes(backward_passes_per_step)
    check_compression(compression)
    if op == Adasum and average_aggregated_gradients:
        raise InvalidArgumentError("Adasum does not support average_aggregated_gradients == True")
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if isinstance(optimizer, Wrapper):
            raise InvalidArgumentError("DistributedOptimizer: this optimizer is wrapped already; it would reduce twice")
        name = name or f"Distributed{type(optimizer).__name__}"
        if op == Adasum:
            if backward_passes_per_step > 1 or groups:
                raise UnavailableError("op=Adasum supports neither groups nor backward_passes_per_step > 1")
            return _DistributedAdasumOptimizer(optimizer, name, use_locking, compression, process_set)
        reducer = GradientReducer(
            name,
            device_dense,
            device_sparse,
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            groups,
            process_set,
        )
        return _DistributedOptimizer(
            optimizer,
            name,
            use_locking,
            reducer,
            backward_passes_per_step,
            sparse_as_dense,
            average_aggregated_gradients,
            scale_local_gradients,
        )
    if not (is_of_keras_2(optimizer) or isinstance(optimizer, tf.keras.optimizers.Optimizer)):
        raise InvalidArgumentError(
            f"Provided optimizer doesn't inherit from either legacy TensorFlow or Keras optimizer: {optimizer}"
        )
    if op == Adasum:
        raise AdasumError("op == Adasum is not supported yet with Keras: use op=hvd.Average")
    from ringreduce.tensorflow import keras as of_keras

    return of_keras.DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
