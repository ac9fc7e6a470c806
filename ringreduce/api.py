"""Every public name but run(), which the launcher has; ringreduce/__init__.py loads this file when one is used."""

from __future__ import annotations

from ringreduce.collectives.data_movement import (
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
    grouped_allgather,
    grouped_allgather_async,
    recv,
    recv_async,
    scatter,
    scatter_async,
    send,
    send_async,
)
from ringreduce.collectives.handles import Handle, poll, synchronize
from ringreduce.collectives.memory import symmetric_empty
from ringreduce.collectives.objects import allgather_object, broadcast_object
from ringreduce.collectives.ops import (
    BitwiseAnd,
    BitwiseOr,
    LogicalAnd,
    LogicalOr,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from ringreduce.collectives.reductions import (
    barrier,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
)
from ringreduce.common import names
from ringreduce.common.names import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.gpu import DeviceArray

__all__: list[str] = [
    "BitwiseAnd",
    "BitwiseOr",
    "DeviceArray",
    "Handle",
    "LogicalAnd",
    "LogicalOr",
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
    "gather",
    "gather_async",
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
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "symmetric_empty",
    "synchronize",
]
__all__ += names.__all__
