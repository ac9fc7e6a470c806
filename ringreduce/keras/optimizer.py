"""DistributedOptimizer: the user's own Keras optimizer, whose apply() uses gradients reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ringreduce.collectives.ops import Average
from ringreduce.common.arguments import whole_passes
from ringreduce.common.groups import checked, renamed
from ringreduce.common.which_keras import is_of_keras_2
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.keras.compression import Compression
from ringreduce.keras.gradient_reduction import GradientReduction
from ringreduce.keras.settings import Settings, check, layers_of
from ringreduce.keras.wrapping import wrap


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
    """The optimizer with its state, in a class that reduces gradients first.

    The result is an instance of the optimizer's class too, with its name, configuration and variables (shared with the
    optimizer given, so that one that is built already keeps its state). A model compiled with it is saved, and loaded
    by keras.models.load_model() or hvd.load_model(), as with the plain one.

    Args:
        optimizer: any optimizer of Keras 3, LossScaleOptimizer included; one of tf_keras is handed to
            ringreduce.keras.legacy.
        name: prefix of the operations' names; None identifies them by their order.
        device_dense, device_sparse: for Horovod's signature; without effect.
        compression: applied to each gradient before it travels, and undone after.
        sparse_as_dense: makes sparse gradients dense; otherwise their indices and values are gathered.
        gradient_predivide_factor: divides gradients by this before, and by size / this after the sum; op=Average only.
        op: Average (default) or Sum.
        groups: a number of groups of equal length, or lists of variables, each reduced as one operation of its own.
            None: all gradients are one operation.
        num_groups: the same number, under the name it had.
        backward_passes_per_step: apply() calls before a step; their gradients are added up on each rank first. It sets
            the optimizer's gradient_accumulation_steps, and `iterations` counts as it does there.
        average_aggregated_gradients: takes the mean of these gradients in place of their sum.
        process_set: the ranks that take part.
        scale_local_gradients: divides the gradients of local variables (register_local_var()) by the number of ranks.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.
        UnavailableError: backward_passes_per_step, and the optimizer's class accumulates in a way of its own; or there
            is no support for Keras's backend.

    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss="mse")
    """
    if is_of_keras_2(optimizer):
        from ringreduce.keras import legacy

        plain = legacy.Compression.none if compression is Compression.none else compression
        return legacy.DistributedOptimizer(
            optimizer,
            name,
            device_dense,
            device_sparse,
            plain,
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
    check(op, gradient_predivide_factor, compression)
    backward_passes_per_step = whole_passes(backward_passes_per_step)
    groups = renamed(num_groups, groups)
    settings = Settings(
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=checked(groups, "keras.Variable"),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return wrap(optimizer, GradientReduction(settings))


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
        local_layers: a layer, or a list of layers, built or not, whose trainable variables are local
            (register_local_var()).

    The other arguments and errors are DistributedOptimizer's.
    """
    layers = layers_of(local_layers, keras.layers.Layer, "keras.layers.Layer")
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
    wrapped._reduction.local_layers.extend(layers)
    return wrapped
