"""ringreduce for Keras 3, with Horovod's API, on the backends tensorflow, torch and jax.

    import ringreduce.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

Which backend it is says Keras (KERAS_BACKEND); only that one is imported.
"""

from __future__ import annotations

from ringreduce import barrier, join
from ringreduce.common import names
from ringreduce.common.names import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.keras import callbacks, elastic
from ringreduce.keras.compression import Compression
from ringreduce.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from ringreduce.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ringreduce.keras.saving import load_model
from ringreduce.objects import allgather_object, broadcast_object

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
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
