"""What a graph may ask when it runs: hvd.rank() and hvd.size() are asked when it is traced."""

from __future__ import annotations

import tensorflow as tf

from ringreduce.tensorflow.native.library import operators
from ringreduce.tensorflow.native.running import ask


def rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank, an int32 scalar, found when the operator runs.

    Raises, as all of them: tf.errors.FailedPreconditionError (eagerly also NotInitializedError) before init().
    """
    return ask(operators.ringreduce_rank, name=name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """This process's rank among those on its host, an int32 scalar, found when the operator runs."""
    return ask(operators.ringreduce_local_rank, name=name)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Number of ranks of a process set, an int32 scalar, found when the operator runs. 0 is the set of all ranks."""
    return ask(operators.ringreduce_size, process_set_id=process_set_id, name=name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Number of ranks on this host, an int32 scalar, found when the operator runs."""
    return ask(operators.ringreduce_local_size, name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """1 where this process is a member of a process set, else 0, an int32 scalar, found when the operator runs.

    Raises:
        tf.errors.InvalidArgumentError: no set of this id is registered then.
    """
    return ask(operators.ringreduce_process_set_included, process_set_id=process_set_id, name=name)
