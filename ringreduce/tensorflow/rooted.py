"""Reduce, gather and scatter of tensors, with gradients. Not in Horovod.

They are made of the all-reduce and the all-to-all, which are the same eagerly and in a tf.function, and whose gradients
are the exact transposes: that of a gather scatters the root's gradient, that of a scatter gathers, that of a reduce
gives every rank the root's. So a reduce costs as much as an all-reduce here.

Several of them in one loss: the order in which TensorFlow computes gradients depends on the whole of the loss, which
differs between the root and other ranks. So each has a name, also eagerly, and its gradient has a name of its own
(gradient_numbers.py): ranks that wait for each other's are told so. A tf.function that is called twice in one loss has
the same names twice.

A rank that has no result gets a token, a scalar zero, also where nobody asks for a gradient: neither a graph nor a tape
that has not ended says whether somebody will. The gradient needs every rank, and TensorFlow follows what the loss
depends on: each rank adds the token to its loss.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Average
from ringreduce.common.gradient_numbers import number_of
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of
from ringreduce.tensorflow.native.data_movement import alltoall
from ringreduce.tensorflow.native.gradients import NAMED
from ringreduce.tensorflow.native.reductions import _allreduce
from ringreduce.tensorflow.native.running import numbered_in_graph, operand
from ringreduce.tensorflow.variables import plain

KEPT_NAMES = 16
"""Eagerly so many gradients of a kind can wait under different names. TensorFlow keeps some 40 KiB for each name."""


def reduce(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Reduces a tensor over all ranks for one of them; differentiable for op Average and Sum.

    Args:
        tensor: a tensor, variable or array, the same shape and dtype on all ranks.
        root_rank: global rank that gets the result.
        name: identifies the operation; None: its number in the graph, eagerly the order of calls.
        op: Average (default), Sum, Min, Max, Product.
        prescale_factor, postscale_factor: multiply each input, and the result.
        process_set: the ranks that take part.

    Returns:
        The result on the root, a token on the others: see gather().
    """
    is_root = _is_root(root_rank, "reduce", process_set)
    factors = (prescale_factor, postscale_factor)
    value = operand(plain(tensor))
    name = _name(name, "reduce", process_set, value)
    result = _allreduce(value, name, op, *factors, ignore_name_scope=True, process_set=process_set)
    with _own_nodes():
        return result if is_root else _token(tf.reshape(result, [-1])[:0])


def gather(
    tensor: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Concatenates every rank's tensor along the first dimension, in rank order, on one rank; differentiable.

        with tf.GradientTape() as tape:
            scores = hvd.gather(model(images), root_rank=0)
            loss = loss_of(labels, scores) if hvd.rank() == 0 else scores  # a token, which is zero
        gradients = tape.gradient(loss, model.trainable_variables)

    A rank with a loss of its own adds the token to it. A tf.function is of the rank that has traced it.

    Args:
        tensor: at least one dimension; the first may differ between ranks, the others and the dtype may not.
        root_rank: global rank that gets the rows.
        name: identifies the operation; None: its number in the graph, eagerly the order of calls.
        process_set: the ranks that take part.

    Returns:
        The rows on the root, a token on the others.
    """
    is_root = _is_root(root_rank, "gather", process_set)
    rows = operand(plain(tensor))
    if rows.shape.rank == 0:
        raise InvalidArgumentError("gather: a tensor of at least one dimension is expected, not a scalar")
    splits = tf.one_hot(_position(root_rank, "gather", process_set), _size(process_set), dtype=tf.int64)
    name = _name(name, "gather", process_set, rows)
    received, _ = alltoall(rows, splits * tf.shape(rows, tf.int64)[0], name, True, process_set)
    with _own_nodes():
        return received if is_root else _token(received)


def scatter(
    tensor: Any,
    output: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Deals the root's tensor out to all ranks, in equal parts along the first dimension; differentiable.

    Args:
        tensor: on the root: size times as many elements as output, the part for group rank 0 first. Elsewhere: None.
        output: a tensor or variable of the shape and dtype of a part, the same on all ranks. Its content does not
            matter, and its gradient is zero. On another rank than the root the tape has to watch it, where the root
            wants a gradient: by it the gradient finds its way to the root.
        root_rank: global rank that has the tensor.
        name: identifies the operation; None: its number in the graph, eagerly the order of calls.
        process_set: the ranks that take part.

    Returns:
        This rank's part, a new tensor.
    """
    like = operand(plain(output))
    size = _size(process_set)
    nothing = tf.expand_dims(like, 0)[:0]
    name = _name(name, "scatter", process_set, like)
    with _own_nodes():
        if _is_root(root_rank, "scatter", process_set):
            whole = _whole(tensor, like, size)
            parts = tf.reshape(whole, tf.concat([[size], tf.shape(like)], 0))
            received, _ = alltoall(tf.concat([parts, nothing], 0), [1] * size, name, True, process_set)
        else:
            received, _ = alltoall(nothing, [0] * size, name, True, process_set)
        return tf.ensure_shape(tf.reshape(received, tf.shape(like)), like.shape)


def _whole(tensor: Any, like: tf.Tensor, size: int) -> tf.Tensor:
    """The root's tensor, checked as far as its shape is known; a graph checks the rest when it runs."""
    if tensor is None:
        raise InvalidArgumentError("scatter: the root has to give a tensor, not None")
    whole = operand(plain(tensor))
    counts = whole.shape.num_elements(), like.shape.num_elements()
    if whole.dtype != like.dtype or (None not in counts and counts[0] != counts[1] * size):
        raise InvalidArgumentError(
            f"scatter of {whole.dtype.name} {whole.shape} into {size} times {like.dtype.name} {like.shape}: the root's "
            f"tensor has {size} times the elements of output, in its dtype"
        )
    return whole


def _position(root_rank: int, call: str, process_set: ProcessSet) -> int:
    return process_set.position(root_rank, call)


def _is_root(root_rank: int, call: str, process_set: ProcessSet) -> bool:
    return group_of(process_set).rank == _position(root_rank, call, process_set)


def _size(process_set: ProcessSet) -> int:
    return group_of(process_set).size


def _token(nothing: tf.Tensor) -> tf.Tensor:
    """The sum of no elements, on which the loss then depends."""
    return tf.reduce_sum(nothing) if nothing.dtype.is_floating else tf.zeros([], nothing.dtype)


def _own_nodes() -> contextlib.AbstractContextManager[Any]:
    """For what the root and the others make differently: it does not count in the names of what they make alike."""
    scope: contextlib.AbstractContextManager[Any] = tf.name_scope("ringreduce")
    return scope


def _name(name: str | None, call: str, process_set: ProcessSet, tensor: tf.Tensor) -> str:
    """With the call's number: in a graph among the graph's, eagerly among those of the process set's group."""
    if not tf.executing_eagerly():
        return numbered_in_graph(name or call, "" if name else getattr(tensor, "name", "")) + NAMED
    return f"{name or call}.{number_of(process_set, call, name) % KEPT_NAMES}{NAMED}"
