"""ringreduce for Keras, with Horovod's API: Keras 3 on the backends tensorflow, torch and jax, and Keras 2 (tf_keras).

    import ringreduce.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

The backend is Keras's own choice (KERAS_BACKEND), and only that one is imported. Where TF_USE_LEGACY_KERAS=1 makes
tf.keras Keras 2, this is for tf_keras, and Keras 3 is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringreduce.common.needs import need
from ringreduce.common.which_keras import uses_keras_2

if uses_keras_2():
    need("tf_keras", __name__, "'ringreduce[keras2]'")
else:
    need("keras", __name__, "keras tensorflow (or torch, or jax, for Keras's backend)")

from ringreduce import barrier, join
from ringreduce.collectives.objects import allgather_object, broadcast_object
from ringreduce.common import names
from ringreduce.common.names import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.keras import callbacks, elastic

if TYPE_CHECKING or not uses_keras_2():
    from ringreduce.keras.compression import Compression
    from ringreduce.keras.functions import (
        allgather,
        allreduce,
        alltoall,
        broadcast,
        broadcast_global_variables,
        broadcast_variables,
        reducescatter,
    )
    from ringreduce.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
    from ringreduce.keras.saving import load_model
else:
    from ringreduce.keras.legacy import (
        Compression,
        DistributedOptimizer,
        PartialDistributedOptimizer,
        allgather,
        allreduce,
        broadcast,
        broadcast_global_variables,
        broadcast_variables,
        load_model,
        reducescatter,
    )
    from ringreduce.tensorflow import alltoall

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "join",
    "load_model",
    "reducescatter",
]
__all__ += names.__all__
