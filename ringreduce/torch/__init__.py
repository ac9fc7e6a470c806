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
    barrier,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    poll,
    rank,
    remove_process_set,
    shutdown,
    size,
    stats,
    synchronize,
)
from ringreduce.objects import allgather_object, broadcast_object
from ringreduce.torch.compression import Compression
from ringreduce.torch.distributed import register
from ringreduce.torch.functions import broadcast_optimizer_state, broadcast_parameters
from ringreduce.torch.movement import (
    allgather,
    allgather_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    join,
)
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
from ringreduce.torch.tensors import symmetric_empty

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
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "global_process_set",
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
    "poll",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "stats",
    "symmetric_empty",
    "synchronize",
]

register()  # dist.init_process_group("ringreduce")
del register
