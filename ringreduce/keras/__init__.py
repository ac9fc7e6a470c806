"""ringreduce for Keras 3, with Horovod's API, on the backends tensorflow, torch and jax.

    import ringreduce.keras as hvd

    hvd.init()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()])

Which backend it is says Keras (KERAS_BACKEND); only that one is imported.
"""

from __future__ import annotations

from ringreduce import (
    Adasum,
    Average,
    Error,
    HorovodInternalError,
    InvalidArgumentError,
    Max,
    Min,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    Product,
    ShutdownError,
    Sum,
    TimeoutError,
    UnavailableError,
    __version__,
    barrier,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    join,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
)
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
from ringreduce.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Error",
    "HorovodInternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PartialDistributedOptimizer",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ShutdownError",
    "Sum",
    "TimeoutError",
    "UnavailableError",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]
