"""ringreduce for PyTorch, with Horovod's API.

    import ringreduce.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

Nothing here is compiled against torch: any torch >= 2.1 will do. Importing it also makes the torch.distributed backend
"ringreduce" known (ringreduce.torch.distributed), for DDP, FSDP and what is built on them.
"""

from __future__ import annotations

import ringreduce.torch.library  # noqa: F401  # registers the operators
from ringreduce import (
    Adasum,
    Average,
    Error,
    Handle,
    HorovodInternalError,
    InvalidArgumentError,
    Max,
    Min,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ProcessSet,
    Product,
    ReduceOp,
    ShutdownError,
    Sum,
    TimeoutError,
    UnavailableError,
    World,
    __version__,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stats,
    stop_timeline,
    synchronize,
)
from ringreduce.objects import allgather_object, broadcast_object
from ringreduce.torch import elastic, mpi_ops
from ringreduce.torch.compression import Compression
from ringreduce.torch.distributed import register
from ringreduce.torch.functions import broadcast_optimizer_state, broadcast_parameters
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
from ringreduce.torch.mpi_ops import _check_has_gpu as _check_has_gpu
from ringreduce.torch.optimizer import DistributedOptimizer
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
from ringreduce.torch.sync_batch_norm import SyncBatchNorm
from ringreduce.torch.tensors import symmetric_empty
from ringreduce.torch.tracing import ASYNC, BLOCKS, untraced

# What the core package has is given the mark here, where torch is.
poll, synchronize = untraced(ASYNC)(poll), untraced(ASYNC)(synchronize)
init, shutdown = untraced(BLOCKS)(init), untraced(BLOCKS)(shutdown)
add_process_set, remove_process_set = untraced(BLOCKS)(add_process_set), untraced(BLOCKS)(remove_process_set)
allgather_object, broadcast_object = untraced(BLOCKS)(allgather_object), untraced(BLOCKS)(broadcast_object)
stats = untraced(BLOCKS)(stats)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Error",
    "Handle",
    "HorovodInternalError",
    "InvalidArgumentError",
    "Max",
    "Min",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "ShutdownError",
    "Sum",
    "SyncBatchNorm",
    "TimeoutError",
    "UnavailableError",
    "World",
    "__version__",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
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
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
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
    "mpi_ops",
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
    "stats",
    "stop_timeline",
    "symmetric_empty",
    "synchronize",
]

register()  # dist.init_process_group("ringreduce")
del register
