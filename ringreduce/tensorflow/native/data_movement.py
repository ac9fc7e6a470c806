"""Collectives that move tensors without reducing them, barrier and join, with Horovod's signatures."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.native.library import operators
from ringreduce.tensorflow.native.reductions import rows_like
from ringreduce.tensorflow.native.running import communicate, id_of, operand, run


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates every rank's tensor along the first dimension, in rank order, on every rank; differentiable.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.
        name: identifies the operation; None: in a graph the name of its node, eagerly the order of calls.
        ignore_name_scope: leaves the scopes around the node out of the operation's name.
        process_set: the ranks that take part.

    Returns:
        A new tensor. Its gradient is the average of the ranks' gradients, of which each gets its own rows.
    """
    return grouped_allgather([tensor], name, ignore_name_scope, process_set)[0]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """allgather() of several tensors, of any shapes and dtypes, by one operator. Returns a list."""
    return gathered(tensors, name, ignore_name_scope, process_set)[0]


def gathered(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """grouped_allgather(), and an int32 matrix: how many rows of each tensor came from each rank of the set."""
    inputs = [operand(tensor) for tensor in tensors]
    if not inputs:
        return [], tf.zeros([0, 0], tf.int32)
    outputs, counts = run(
        operators.ringreduce_allgather,
        inputs,
        process_set_id=id_of(process_set),
        name=name,
        ignore_name_scope=ignore_name_scope,
    )
    if not tf.executing_eagerly():
        counts.set_shape([len(inputs), None])
    return [rows_like(output, tensor) for output, tensor in zip(outputs, inputs, strict=True)], counts


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The root's tensor, on every rank; differentiable.

    Args:
        tensor: the same shape and dtype on all ranks; the content matters on the root only.
        root_rank: global rank whose tensor it is.
        The others as in allgather().

    Returns:
        A new tensor. Its gradient is the average of the ranks' gradients on the root, and zeros elsewhere.
    """
    return broadcasts([tensor], root_rank, name, ignore_name_scope, process_set)[0]


def broadcasts(
    tensors: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> list[tf.Tensor]:
    """broadcast() of several tensors, of any shapes and dtypes, by one operator."""
    if not tensors:
        return []
    return list(
        run(
            operators.ringreduce_broadcast,
            [operand(tensor) for tensor in tensors],
            root_rank=_whole(root_rank),
            process_set_id=id_of(process_set),
            name=name,
            ignore_name_scope=ignore_name_scope,
        )
    )


def _whole(root_rank: Any) -> int:
    """The job, and so the ranks of a set, may begin after a graph was made: whether it is a member, the kernel says."""
    try:
        return index(root_rank)
    except TypeError:
        raise InvalidArgumentError(f"broadcast: root_rank={root_rank!r}: a whole number is expected") from None


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Overwrites variables with the root's, all of them by one operator.

    TensorFlow's C API reaches no variable, so each is read, broadcast and assigned; other ranks than the root copy
    nothing for it, because the operator writes into new memory that the assignment takes over.

    Args:
        variables: of any shapes and dtypes, the same on all ranks.
        root_rank: global rank whose values they get.

    Returns:
        The results of the assignments, in the order of the variables.
    """
    values = broadcasts(variables, root_rank, name, False, process_set)
    return [variable.assign(value) for variable, value in zip(variables, values, strict=True)]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> Any:
    """Sends rows of the tensor to every rank and concatenates what comes from each, in rank order; differentiable.

    Args:
        tensor: at least one dimension; all but the first, and the dtype, are the same on all ranks.
        splits: how many rows go to each rank, in rank order: 1-D integers, one per rank. None: equal parts.
        The others as in allgather().

    Returns:
        The received rows; with splits, (rows, received_splits): how many came from each rank, int32.
    """
    rows, received = exchanged(tensor, splits, name, ignore_name_scope, process_set)
    return rows if splits is None else (rows, received)


def exchanged(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tuple[tf.Tensor, tf.Tensor]:
    """alltoall() with its received_splits in either case."""
    tensor = operand(tensor)
    rows, received = run(
        operators.ringreduce_alltoall,
        tensor,
        _checked(splits),
        process_set_id=id_of(process_set),
        name=name,
        ignore_name_scope=ignore_name_scope,
    )
    if not tf.executing_eagerly():
        received.set_shape([None])
    return rows_like(rows, tensor), received


def barrier(process_set: ProcessSet = global_process_set, name: str | None = None) -> Any:
    """Blocks until every rank of the process set is here.

    Returns:
        In a graph of tf.compat.v1: the operation to run. Else None: a tf.function runs it in its turn.
    """
    operation = run(operators.ringreduce_barrier, process_set_id=id_of(process_set), name=name)
    return None if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function else operation


def join(process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Says that this rank has no more data, and blocks until all ranks have said so: see ringreduce.join().

    Returns:
        The global rank that joined last, an int32 scalar, the same on all ranks.
    """
    return communicate(operators.ringreduce_join, process_set_id=id_of(process_set))


def _checked(splits: Any) -> tf.Tensor:
    """The splits as the operator has them: int64, and a scalar where there are none."""
    if splits is None:
        return tf.constant(0, tf.int64)
    splits = tf.convert_to_tensor(splits)
    if not splits.dtype.is_integer and splits.shape.num_elements() != 0:
        raise InvalidArgumentError("alltoall expects splits to contain 32-bit integer elements.")
    if splits.shape.rank is not None and splits.shape.rank != 1:
        raise InvalidArgumentError("alltoall expects a 1D splits tensor")
    return tf.cast(splits, tf.int64)
