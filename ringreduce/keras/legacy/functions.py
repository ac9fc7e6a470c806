"""Horovod's functions of Keras 2: eagerly tensors, in graphs of TensorFlow 1 what Keras's session makes of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tf_keras.api._v1.keras.backend import get_session

from ringreduce import tensorflow as hvd
from ringreduce.collectives.ops import Average
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.compression import Compression


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
    """The mean (op=Sum: the sum, and so on) of every rank's value, on every rank. Arguments: ringreduce.keras's."""
    reduced = hvd.allreduce(
        tf.convert_to_tensor(value),
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
        process_set=process_set,
    )
    return _evaluated(reduced)


def allgather(value: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """Every rank's value along the first dimension, in rank order, on every rank."""
    return _evaluated(hvd.allgather(tf.convert_to_tensor(value), name, process_set=process_set))


def broadcast(value: Any, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    """The value of the root, a global rank, on every rank."""
    return _evaluated(hvd.broadcast(tf.convert_to_tensor(value), root_rank, name, process_set=process_set))


def reducescatter(
    value: Any, name: str | None = None, op: int = Average, process_set: ProcessSet = global_process_set
) -> Any:
    """This rank's part, along the first dimension, of the mean (op=Sum: the sum)."""
    return _evaluated(hvd.reducescatter(tf.convert_to_tensor(value), op=op, name=name, process_set=process_set))


def broadcast_variables(variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Gives variables the values that they have on the root, a global rank. Collective."""
    operation = hvd.broadcast_variables(variables, root_rank, process_set=process_set)
    if operation is not None:
        _evaluated(operation)


def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: gives all global variables the values of the root. Raises RuntimeError eagerly."""
    return _evaluated(hvd.broadcast_global_variables(root_rank))


def _evaluated(result: Any) -> Any:
    return result if tf.executing_eagerly() or _is_traced() else get_session().run(result)


def _is_traced() -> bool:
    """Within a tf.function the result is a part of its graph."""
    return bool(tf.compat.v1.get_default_graph().building_function)
