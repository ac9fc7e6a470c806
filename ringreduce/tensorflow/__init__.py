"""ringreduce for TensorFlow, with Horovod's API.

    import ringreduce.tensorflow as hvd

    hvd.init()
    with tf.GradientTape() as tape:
        loss = loss_of(model(images), labels)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    hvd.broadcast_variables(model.weights, root_rank=0)  # after the first step, which makes the variables

For Keras's model.fit(): ringreduce.tensorflow.keras. Nothing here is compiled against TensorFlow, 2.16 or newer.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ringreduce.common.needs import need

need("tensorflow", __name__, "'ringreduce[tensorflow]'")

from ringreduce.common.names import *  # noqa: F403  # those of mpi_ops are these; mypy sees them only here
from ringreduce.common.which_keras import uses_keras_2
from ringreduce.tensorflow import elastic, mpi_ops, util
from ringreduce.tensorflow.collectives import allreduce, grouped_allreduce, grouped_reducescatter, reducescatter
from ringreduce.tensorflow.compression import Compression
from ringreduce.tensorflow.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from ringreduce.tensorflow.gradients import _make_allreduce_grads_fn as _make_allreduce_grads_fn
from ringreduce.tensorflow.messages import recv, send
from ringreduce.tensorflow.mpi_ops import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.tensorflow.optimizer import DistributedOptimizer
from ringreduce.tensorflow.rooted import gather, reduce, scatter
from ringreduce.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from ringreduce.tensorflow.util import (
    _executing_eagerly as _executing_eagerly,
)
from ringreduce.tensorflow.util import (
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
    refs_to_vars,
    vars_to_refs,
)

if TYPE_CHECKING:
    from ringreduce.tensorflow.sync_batch_norm import SyncBatchNormalization

__all__ = [
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather_object",
    "allreduce",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "check_num_rank_power_of_2",
    "elastic",
    "gather",
    "gpu_available",
    "grouped_allreduce",
    "grouped_reducescatter",
    "handle_average_backwards_compatibility",
    "mpi_ops",
    "recv",
    "reduce",
    "reducescatter",
    "refs_to_vars",
    "scatter",
    "send",
    "util",
    "vars_to_refs",
]
__all__ += mpi_ops.__all__


def __getattr__(name: str) -> Any:
    if name in ("SyncBatchNormalization", "sync_batch_norm"):  # Keras is loaded when it is used
        module = "ringreduce.keras.legacy.sync_batch_norm" if uses_keras_2() else f"{__name__}.sync_batch_norm"
        found = importlib.import_module(module)
        return found if name == "sync_batch_norm" else found.SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
