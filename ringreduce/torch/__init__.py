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

from ringreduce.common.needs import need

need("torch", __name__, "'ringreduce[torch]'")

import ringreduce.torch.collectives.library  # noqa: F401  # registers the operators
from ringreduce import Handle
from ringreduce.common.names import *  # noqa: F403  # those of mpi_ops are these; mypy sees them only here
from ringreduce.torch import elastic, mpi_ops
from ringreduce.torch.collectives.gather_scatter import gather, gather_async, scatter, scatter_async
from ringreduce.torch.collectives.messages import recv, recv_async, send, send_async
from ringreduce.torch.collectives.reduce import (  # after the modules, whose names the functions take
    reduce,
    reduce_async,
)
from ringreduce.torch.compression import Compression
from ringreduce.torch.distributed import register
from ringreduce.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ringreduce.torch.local_sgd import ElasticAveraging, LocalSGD, diloco, slowmo
from ringreduce.torch.mpi_ops import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.torch.mpi_ops import _check_has_gpu as _check_has_gpu
from ringreduce.torch.optimizer import DistributedOptimizer
from ringreduce.torch.sync_batch_norm import SyncBatchNorm
from ringreduce.torch.tensors import symmetric_empty

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "ElasticAveraging",
    "Handle",
    "LocalSGD",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "diloco",
    "elastic",
    "gather",
    "gather_async",
    "mpi_ops",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "slowmo",
    "symmetric_empty",
]
__all__ += mpi_ops.__all__

register()  # dist.init_process_group("ringreduce")
del register
