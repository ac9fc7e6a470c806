"""Horovod's queries and collectives, as hvd.NAME and, as some scripts spell it, as hvd.mpi_ops.NAME.

The name of the module is Horovod's: nothing here uses MPI.
"""

from __future__ import annotations

import torch

from ringreduce import basics, handles, process_sets
from ringreduce.basics import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
from ringreduce.errors import HorovodInternalError
from ringreduce.features import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from ringreduce.ops import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
from ringreduce.process_sets import (
    ProcessSet,
    global_process_set,
)
from ringreduce.torch.movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    join,
)
from ringreduce.torch.reduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ringreduce.torch.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ringreduce.torch.sparse import sparse_allreduce_async
from ringreduce.torch.tracing import ASYNC, BLOCKS, untraced

# What the core package has is given the mark here, where torch is.
poll, synchronize = untraced(ASYNC)(handles.poll), untraced(ASYNC)(handles.synchronize)
init, shutdown = untraced(BLOCKS)(basics.init), untraced(BLOCKS)(basics.shutdown)
add_process_set = untraced(BLOCKS)(process_sets.add_process_set)
remove_process_set = untraced(BLOCKS)(process_sets.remove_process_set)

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def _check_has_gpu() -> bool:
    """True when torch sees a CUDA device. Whether ringreduce communicates its memory is cuda_built()."""
    return torch.cuda.is_available()
