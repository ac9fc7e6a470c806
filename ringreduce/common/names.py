"""The names that ringreduce and every framework's package have: one source for all of them.

    from ringreduce.common.names import *
    __all__ += names.__all__

None of them touches a tensor. What a package has of its own, its collectives, comes on top.
"""

from __future__ import annotations

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
    report,
    shutdown,
    size,
    stats,
)
from ringreduce.collectives.ops import Adasum, Average, Max, Min, Product, ReduceOp, Sum
from ringreduce.common.report_log import ReportLog
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
from ringreduce.job.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__: list[str] = [
    "Adasum",
    "Average",
    "Error",
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
    "ReportLog",
    "ShutdownError",
    "Sum",
    "TimeoutError",
    "UnavailableError",
    "World",
    "__version__",
    "add_process_set",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "remove_process_set",
    "report",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]
