"""Horovod's queries and collectives, as hvd.NAME and, as some scripts spell it, as hvd.mpi_ops.NAME.

The name of the module is Horovod's: nothing here uses MPI.
"""

from __future__ import annotations

import torch

from ringreduce import basics
from ringreduce.collectives import handles
from ringreduce.common import names
from ringreduce.common.adasum import is_power_of_two as num_rank_is_power_2  # noqa: F401
from ringreduce.common.arguments import choose as handle_average_backwards_compatibility  # noqa: F401
from ringreduce.common.basics import HorovodBasics
from ringreduce.common.names import *  # noqa: F403
from ringreduce.job import process_sets
from ringreduce.torch.collectives.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ringreduce.torch.collectives.data_movement import (
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
from ringreduce.torch.collectives.horovod_functions import (  # noqa: F401
    HorovodAllgather,
    HorovodAllreduce,
    HorovodAlltoall,
    HorovodBroadcast,
    HorovodGroupedAllgather,
    HorovodGroupedAllreduce,
    HorovodGroupedReducescatter,
    HorovodReducescatter,
)
from ringreduce.torch.collectives.reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from ringreduce.torch.collectives.sparse import sparse_allreduce_async
from ringreduce.torch.compression import Compression  # noqa: F401
from ringreduce.torch.tracing import ASYNC, BLOCKS, untraced

# What the core package has is given the mark here, where torch is.
poll, synchronize = untraced(ASYNC)(handles.poll), untraced(ASYNC)(handles.synchronize)
init, shutdown = untraced(BLOCKS)(basics.init), untraced(BLOCKS)(basics.shutdown)
add_process_set = untraced(BLOCKS)(process_sets.add_process_set)
remove_process_set = untraced(BLOCKS)(process_sets.remove_process_set)
stats, report = untraced(BLOCKS)(basics.stats), untraced(BLOCKS)(basics.report)

__all__ = [
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
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += names.__all__


_basics = HorovodBasics()


def _check_has_gpu() -> bool:
    """True when torch sees a CUDA device. Whether ringreduce communicates its memory is cuda_built()."""
    return torch.cuda.is_available()
