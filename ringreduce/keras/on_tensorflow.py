"""Keras's tensorflow backend: ringreduce.tensorflow, eagerly and in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringreduce import tensorflow as hvd
from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow.variables import refuse_strategies


def check() -> None:
    """Raises UnavailableError within what XLA compiles, and within a scope of tf.distribute."""
    if _under_xla():
        raise UnavailableError(
            "DistributedOptimizer does not work under XLA yet: model.compile(..., jit_compile=False). On machines with "
            'a GPU Keras\'s default, jit_compile="auto", means XLA'
        )
    refuse_strategies("DistributedOptimizer")


def _under_xla() -> bool:
    """Whether what is being traced is, or is called by, a tf.function with jit_compile=True."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


def grouped_allreduce(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: Any,
    process_set: ProcessSet,
) -> list[Any]:
    """As one operation."""
    return hvd.grouped_allreduce(
        tensors,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        process_set=process_set,
        ignore_name_scope=True,  # scopes bear names of optimizers, which Keras numbers on each rank by itself
        name=name,
    )


def is_traced(tensors: Sequence[Any]) -> bool:
    return not tf.executing_eagerly()


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


def dense(tensor: Any) -> Any:
    return tf.convert_to_tensor(tensor)


def divided(tensor: Any, number: int) -> Any:
    if is_sparse(tensor):  # tf.IndexedSlices have no operators
        return tf.IndexedSlices(tensor.values / number, tensor.indices, tensor.dense_shape)
    return tensor / number


def sparse_allreduce(tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
    return hvd.allreduce(tensor, op=op, name=name, process_set=process_set, ignore_name_scope=True)


def allgather(tensor: Any, name: str | None, process_set: ProcessSet) -> Any:
    return hvd.allgather(tensor, name, process_set=process_set)


def broadcast(tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
    return hvd.broadcast(tensor, root_rank, name, process_set=process_set)


def reducescatter(tensor: Any, name: str | None, op: int, process_set: ProcessSet) -> Any:
    return hvd.reducescatter(tensor, op=op, name=name, process_set=process_set)
