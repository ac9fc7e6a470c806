"""ringreduce: ring all-reduce and friends for data-parallel training.

    import numpy as np
    import ringreduce

    with ringreduce.init() as world:
        total = ringreduce.allreduce(np.arange(4.0), op=ringreduce.Sum)

ringreduce.torch has the same for PyTorch, with Horovod's API.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringreduce import no_core

try:
    from ringreduce import _core as _core
except ImportError as error:
    raise no_core.explained(error, Path(__file__).parent) from error

from ringreduce.common import names
from ringreduce.common.names import *  # noqa: F403  # its __all__ is part of the one below
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
from ringreduce.reduction import barrier, join, reduce, reduce_async, reducescatter, reducescatter_async

if TYPE_CHECKING:
    from ringreduce.launch.run import run

__all__ = [
    "BitwiseAnd",
    "BitwiseOr",
    "DeviceArray",
    "Handle",
    "LogicalAnd",
    "LogicalOr",
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
    "gather",
    "gather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "join",
    "poll",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "run",
    "scatter",
    "scatter_async",
    "send",
    "send_async",
    "symmetric_empty",
    "synchronize",
]
__all__ += names.__all__


def __getattr__(name: str) -> Any:
    if name == "run":  # the launcher is loaded when it is used
        from ringreduce.launch.run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
