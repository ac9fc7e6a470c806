"""ringreduce: ring all-reduce and friends for data-parallel training.

    import numpy as np
    import ringreduce

    with ringreduce.init() as world:
        total = ringreduce.allreduce(np.arange(4.0), op=ringreduce.Sum)

ringreduce.torch has the same for PyTorch, with Horovod's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringreduce._core import __version__
from ringreduce.basics import (
    World,
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    stats,
)
from ringreduce.errors import (
    Error,
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    NotInitializedError,
    PeerLostError,
    ShutdownError,
    TimeoutError,
    UnavailableError,
)
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
from ringreduce.gpu import DeviceArray
from ringreduce.handles import Handle, poll, synchronize
from ringreduce.memory import symmetric_empty
from ringreduce.movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    gather_async,
    recv,
    recv_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from ringreduce.ops import (
    Adasum,
    Average,
    BitwiseAnd,
    BitwiseOr,
    LogicalAnd,
    LogicalOr,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ringreduce.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ringreduce.reduction import barrier, join, reduce, reduce_async, reducescatter, reducescatter_async

if TYPE_CHECKING:
    from ringreduce.launch.run import run

__all__ = [
    "Adasum",
    "Average",
    "BitwiseAnd",
    "BitwiseOr",
    "DeviceArray",
    "Error",
    "Handle",
    "HorovodInternalError",
    "InvalidArgumentError",
    "LogicalAnd",
    "LogicalOr",
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
    "TimeoutError",
    "UnavailableError",
    "World",
    "__version__",
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
    "gather",
    "gather_async",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
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
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "symmetric_empty",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    if name == "run":  # the launcher is loaded when it is used
        from ringreduce.launch.run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
