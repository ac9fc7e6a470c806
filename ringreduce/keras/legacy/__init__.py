"""ringreduce for Keras 2 (tf_keras), with Horovod's API: what ringreduce.keras is where TF_USE_LEGACY_KERAS=1.

The optimizers are those of tf_keras.optimizers and of tf_keras.optimizers.legacy. A program that uses tf_keras beside
tf.keras, which is Keras 3 then, imports this package itself; DistributedOptimizer() of ringreduce.keras takes its
optimizers too.
"""

from __future__ import annotations

from ringreduce.common.needs import need

need("tf_keras", __name__, "'ringreduce[keras2]'")

from ringreduce.keras.legacy.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    reducescatter,
)
from ringreduce.keras.legacy.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from ringreduce.keras.legacy.saving import load_model
from ringreduce.tensorflow.compression import Compression

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "load_model",
    "reducescatter",
]
