"""Horovod's functions of Keras: collectives on values of the active backend, and variables from one rank to all."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from ringreduce import state
from ringreduce.collectives import data_movement
from ringreduce.collectives.ops import Average
from ringreduce.common.arguments import choose
from ringreduce.common.same_start import check_number
from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.keras import backend
from ringreduce.keras.compression import Compression


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The mean (op=Sum: the sum, and so on) of every rank's value, on every rank: a tensor of the active backend.

    Args:
        value: a tensor, a variable, an array or a number; the same shape and dtype on all ranks.
        name: identifies the operation; None uses the order of calls.
        average: Horovod's old spelling of op.
        prescale_factor, postscale_factor: multiplied in before and after.
        op: Average (default), Sum, Min, Max or Product.
        compression: hvd.Compression's, or a class of yours with the two functions.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: both op and average are given.
    """
    op = choose(op, average)
    # A new tensor: what a backend reduces in place must not be the caller's.
    tensor = keras.ops.copy(keras.ops.convert_to_tensor(value))
    settings = (name, op, prescale_factor, postscale_factor, compression, process_set)
    return backend.active().grouped_allreduce([tensor], *settings)[0]


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Every rank's value along the first dimension, in rank order: a tensor of the active backend.

    The first dimension may differ between ranks, the others and the dtype may not.
    """
    return backend.active().allgather(keras.ops.convert_to_tensor(value), name, process_set)


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The value of the root, a global rank, on every rank: a tensor of the active backend."""
    return backend.active().broadcast(keras.ops.convert_to_tensor(value), root_rank, name, process_set)


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's part, along the first dimension, of the mean (op=Sum: the sum): a tensor of the active backend."""
    return backend.active().reducescatter(keras.ops.convert_to_tensor(value), name, op, process_set)


def alltoall(
    value: Any, splits: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Sends rows of the value to every rank, and joins the rows that come from them, in rank order.

    Args:
        value: at least one dimension; all but the first, and the dtype, are the same on all ranks.
        splits: how many rows go to each rank, in rank order: 1-D integers, one per rank. None: equal parts.
        name: identifies the operation; None uses the order of calls.
        process_set: the ranks that take part.

    Returns:
        The received rows, a tensor of the active backend; with splits, (rows, received_splits): also how many rows
        came from each rank.
    """
    backend.active()  # raises for a backend that has no package here
    package = importlib.import_module(f"ringreduce.{keras.backend.backend()}")
    return package.alltoall(keras.ops.convert_to_tensor(value), splits, name=name, process_set=process_set)


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives variables the values that they have on the root, a global rank. Collective; outside of graphs.

    Args:
        variables: such as `model.weights + model.optimizer.variables`; the same on all ranks, in the same order.
            Every rank of the process set calls it, also where there are none.

    Raises:
        MismatchError: their number, shapes or dtypes differ between ranks.
    """
    state.finish_in_flight()
    variables = list(variables)
    check_number("broadcast_variables", len(variables), root_rank, process_set)
    arrays = [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]  # writable
    handles = [data_movement.broadcast_async_(array, root_rank, process_set=process_set) for array in arrays]
    for variable, array, handle in zip(variables, arrays, handles, strict=True):
        handle.wait()
        variable.assign(array)


def broadcast_global_variables(root_rank: int) -> None:
    """Horovod's, for graphs of TensorFlow 1. Raises UnavailableError: Keras 3 has no list of all variables."""
    raise UnavailableError(
        "hvd.broadcast_global_variables() does not support eager execution, and Keras 3 has no list of all variables. "
        f"Use hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}) with model.fit(), or "
        f"hvd.broadcast_variables(model.weights + model.optimizer.variables, {root_rank})"
    )
