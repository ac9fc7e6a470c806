"""Collectives that reduce, for dense tensors. What collectives/ops.py says of op, factors and names holds here too.

op defaults to Sum as in Horovod's functions of the same names; hvd.allreduce() and the others default to Average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Sum, check_op
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.native.library import operators
from ringreduce.tensorflow.native.running import id_of, operand, run


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> tf.Tensor:
    """All-reduce of one dense tensor; differentiable for op Average and Sum."""
    return _grouped_allreduce([tensor], name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set)[0]


def _grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
) -> list[tf.Tensor]:
    """All-reduce of several dense tensors, of any shapes and dtypes, as one operator and one operation."""
    check_op(op)
    if not tensors:
        return []
    return list(
        run(
            operators.ringreduce_allreduce,
            [operand(tensor) for tensor in tensors],
            reduce_op=int(op),
            prescale_factor=repr(float(prescale_factor)),
            postscale_factor=repr(float(postscale_factor)),
            process_set_id=id_of(process_set),
            name=name,
            ignore_name_scope=ignore_name_scope,
        )
    )


def _reducescatter(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduce-scatter of one dense tensor: this rank's rows; the first dim0 % size ranks get one more."""
    return _grouped_reducescatter(
        [tensor], name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor
    )[0]


def _grouped_reducescatter(
    tensors: Sequence[Any],
    name: str | None = None,
    op: int = Sum,
    ignore_name_scope: bool = False,
    process_set: ProcessSet | int = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Reduce-scatter of several dense tensors, of any shapes and dtypes, by one operator."""
    check_op(op)
    if not tensors:
        return []
    inputs = [operand(tensor) for tensor in tensors]
    outputs = run(
        operators.ringreduce_reducescatter,
        inputs,
        reduce_op=int(op),
        prescale_factor=repr(float(prescale_factor)),
        postscale_factor=repr(float(postscale_factor)),
        process_set_id=id_of(process_set),
        name=name,
        ignore_name_scope=ignore_name_scope,
    )
    return [rows_like(output, tensor) for output, tensor in zip(outputs, inputs, strict=True)]


def rows_like(output: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """The output with all its static shape: the tensor's, but for the number of rows."""
    if not tf.executing_eagerly() and tensor.shape.rank:
        output.set_shape([None, *tensor.shape[1:]])
    return output
