"""Gradients of the operators, the same eagerly and in graphs, and differentiable themselves.

They are operations of their own, which every rank runs: a loss that depends on a collective on one rank depends on it
on all. The last input of each operator is the token, which has none. Each is for both forms of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from ringreduce.collectives.ops import Average, ReduceOp, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.tensorflow.native import data_movement, reductions
from ringreduce.tensorflow.native.library import operators
from ringreduce.tensorflow.native.running import ask

NAMED = ".rooted"
"""How the name of an operation ends whose gradient is to have a name as well."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _gradient_of(name: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for form in (name, f"{name}Deferred"):
            tf.RegisterGradient(form)(function)
        return function

    return register


@_gradient_of("RingreduceAllreduce")
def _of_allreduce(op: Any, *grads: Any) -> list[Any]:
    """The same all-reduce of the gradients."""
    reduce_op = ReduceOp(op.get_attr("reduce_op"))
    if reduce_op not in (Average, Sum):
        raise InvalidArgumentError(f"allreduce has a gradient for op Average and Sum, not for {reduce_op.name}")
    factors = _factor(op, "prescale_factor"), _factor(op, "postscale_factor")
    return [*_reduced(grads, reduce_op, _set(op), *factors, name=_name(op)), None]


@_gradient_of("RingreduceAllgather")
def _of_allgather(op: Any, *grads: Any) -> list[Any]:
    """This rank's rows of the averaged gradients."""
    averaged = _reduced(grads[:-1], Average, _set(op))
    rank = ask(operators.ringreduce_rank, process_set_id=_set(op))
    own = []
    all_counts = tf.cast(op.outputs[-1], tf.int64)  # together they may be more rows than int32 has numbers
    for grad, counts, tensor in zip(averaged, tf.unstack(all_counts), op.inputs[:-1], strict=True):
        start = tf.reduce_sum(counts[:rank])
        rows = None if grad is None else grad[start : start + counts[rank]]
        own.append(None if rows is None else tf.ensure_shape(rows, tensor.shape))
    return [*own, None]


@_gradient_of("RingreduceBroadcast")
def _of_broadcast(op: Any, *grads: Any) -> list[Any]:
    """The averaged gradients on the root, zeros elsewhere."""
    is_root = tf.equal(ask(operators.ringreduce_rank), op.get_attr("root_rank"))
    averaged = _reduced(grads, Average, _set(op))
    return [*(None if grad is None else tf.where(is_root, grad, tf.zeros_like(grad)) for grad in averaged), None]


@_gradient_of("RingreduceAlltoall")
def _of_alltoall(op: Any, grad: Any, _: Any) -> list[Any]:
    """Every row's gradient goes back to where the row came from. Rows that were sent to nobody get zeros."""
    grad = tf.convert_to_tensor(grad)
    back, _ = data_movement.exchanged(grad, op.outputs[1], _name(op), ignore_name_scope=True, process_set=_set(op))
    shape = tf.shape(op.inputs[0])
    kept = tf.zeros(tf.concat([[shape[0] - tf.shape(back)[0]], shape[1:]], 0), back.dtype)
    return [tf.ensure_shape(tf.concat([back, kept], 0), op.inputs[0].shape), None, None]


@_gradient_of("RingreduceReducescatter")
def _of_reducescatter(op: Any, *grads: Any) -> list[Any]:
    """The gathered gradients, with the factors, and times the number of ranks for Sum."""
    factor = _factor(op, "prescale_factor") * _factor(op, "postscale_factor")
    ranks = ask(operators.ringreduce_size, process_set_id=_set(op)) if op.get_attr("reduce_op") == Sum else 1
    dense = [tf.convert_to_tensor(grad) for grad in grads]
    scaled = [grad * tf.cast(tf.cast(ranks, tf.float64) * factor, grad.dtype) for grad in dense]
    whole, _ = data_movement.gathered(scaled, process_set=_set(op))
    return [*(tf.ensure_shape(grad, tensor.shape) for grad, tensor in zip(whole, op.inputs[:-1], strict=True)), None]


def _reduced(
    grads: Sequence[Any], op: int, process_set: int, pre: float = 1.0, post: float = 1.0, name: str | None = None
) -> list[Any]:
    """The gradients, reduced as one operation; None stays None, as it does on all ranks."""
    given = [at for at, grad in enumerate(grads) if grad is not None]
    reduced: list[Any] = [None] * len(grads)
    dense = [tf.convert_to_tensor(grads[at]) for at in given]
    results = reductions._grouped_allreduce(dense, name, op, pre, post, name is not None, process_set)
    for at, result in zip(given, results, strict=True):
        reduced[at] = result
    return reduced


def _name(op: Any) -> str | None:
    name = op.get_attr("tensor_name")
    text = name.decode() if isinstance(name, bytes) else str(name)
    return f"{text}.gradient" if text.endswith(NAMED) else None


def _set(op: Any) -> int:
    return int(op.get_attr("process_set_id"))


def _factor(op: Any, name: str) -> float:
    return float(op.get_attr(name))
