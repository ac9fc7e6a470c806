"""DistributedOptimizer for optimizers of Keras 2: tf_keras.optimizers and tf_keras.optimizers.legacy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tf_keras

from ringreduce.collectives.ops import Average
from ringreduce.common.arguments import whole_passes
from ringreduce.common.groups import renamed
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.keras.legacy.distributed import GradientReduction
from ringreduce.keras.legacy.wrapping import wrap
from ringreduce.keras.settings import Settings, check, layers_of
from ringreduce.tensorflow.compression import Compression


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """The optimizer with its state, in a class that reduces the gradients that it computes.

    The result is an instance of the optimizer's class too, with its configuration and variables; models are saved as
    with the plain one. fit(), minimize() and get_gradients() reduce. apply_gradients() does not: in a training loop of
    your own, take the gradients from hvd.DistributedGradientTape or compute_gradients().

    Args:
        optimizer: of tf_keras.optimizers or tf_keras.optimizers.legacy, LossScaleOptimizer included.
        name: of the scope around the operations in a graph; default: "Distributed" and the optimizer's class.
        device_dense, device_sparse: where TensorFlow places the operations; "" leaves that to it.
        compression: applied to each gradient before it travels, and undone after.
        sparse_as_dense: makes sparse gradients dense; otherwise their indices and values are gathered.
        gradient_predivide_factor: divides gradients by this before, and by size / this after the sum; op=Average only.
        op: Average (default) or Sum.
        num_groups: the number of groups, under the name it had.
        groups: a number of groups, or lists of variables, each reduced as one operation. None: all are one operation.
        backward_passes_per_step: passes whose gradients are added up on each rank before they are reduced and applied.
            `iterations` counts passes, as in Horovod.
        average_aggregated_gradients: takes the mean of these gradients in place of their sum.
        process_set: the ranks that take part.
        scale_local_gradients: divides the gradients of local variables (register_local_var()) by the number of ranks.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.
    """
    check(op, gradient_predivide_factor, compression)
    backward_passes_per_step = whole_passes(backward_passes_per_step)
    settings = Settings(
        name=name or f"Distributed{type(optimizer).__name__}",
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=renamed(num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return wrap(optimizer, GradientReduction(settings, (device_dense, device_sparse)))


def PartialDistributedOptimizer(
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
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedOptimizer() that leaves the variables of some layers to each rank.

    Args:
        local_layers: a layer, or a list of layers, built or not, whose trainable variables are local.

    The other arguments and errors are DistributedOptimizer's.
    """
    layers = layers_of(local_layers, tf_keras.layers.Layer, "tf.keras.layers.Layer")
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    getattr(wrapped, "inner_optimizer", wrapped)._reduction.local_layers.extend(layers)
    return wrapped
