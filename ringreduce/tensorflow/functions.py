"""What a training script calls once, so that all ranks start from the same place; and Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ringreduce.collectives import objects
from ringreduce.common.same_start import number_mark
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.native.data_movement import broadcasts
from ringreduce.tensorflow.native.running import id_of
from ringreduce.tensorflow.variables import plain, refuse_strategies


class EagerExecutionError(RuntimeError):
    """A function of TensorFlow 1's graphs was called eagerly. Horovod raises RuntimeError."""


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables with the root's, all of them by one operation, after one that compares their number.

    Args:
        variables: of TensorFlow or Keras, in the same order on all ranks: model.weights, optimizer.variables.
            Every rank of the process set calls it, also where there are none.
        root_rank: global rank whose values are right.
        inplace: for Horovod's signature; either way values are received in new memory, which the assignments take over.

    Returns:
        None; in a graph of TensorFlow 1, the operation to run.

    Raises:
        InvalidArgumentError: the process set is not registered, or the root is not in it.
        MismatchError: the ranks give other numbers of variables: none is overwritten.
        UnavailableError: a variable belongs to a tf.distribute strategy.
    """
    given = list(variables)
    refuse_strategies("hvd.broadcast_variables", given)
    targets = [plain(variable) for variable in given]
    id_of(process_set)  # raises where there is no such set, before "not included" is taken for an answer
    done = []
    if process_set.included():
        shape, name = number_mark("broadcast_variables", len(targets))
        # In a graph names are the operations' own: two of one name might run at once.
        eager_name = name if tf.executing_eagerly() else None
        done = broadcasts([tf.zeros(shape, tf.uint8)], root_rank, eager_name, process_set=process_set)
        with tf.control_dependencies(done):
            tensors = [tf.convert_to_tensor(target) for target in targets]
            values = broadcasts(tensors, root_rank, process_set=process_set)
        done += [assigned(target, value) for target, value in zip(targets, values, strict=True)]
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*done)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The root's object, on every rank; on the root the object itself. Pickled: for set-up, not for arrays.

    Args:
        obj: matters on the root only.
        root_rank: global rank whose object it is.
        session: for Horovod's signature; no graph is needed, so it works with and without one.
        name: identifies the operation; None uses the order of calls.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object that is broadcast_object() with these arguments."""

    def broadcast(obj: Any) -> Any:
        return objects.broadcast_object(obj, root_rank, name, process_set)

    return broadcast


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Every rank's object, in rank order, on every rank. Pickled: for set-up, not for arrays.

    Args:
        obj: any size; may differ in type between ranks.
        session: for Horovod's signature; without effect.
        name: identifies the operation; None uses the order of calls.
    """
    return objects.allgather_object(obj, name, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """In a graph of TensorFlow 1: the operation that overwrites all global variables with the root's.

    Raises:
        EagerExecutionError: TensorFlow executes eagerly; broadcast_variables() takes the variables by name.
    """
    if tf.executing_eagerly():
        raise EagerExecutionError(
            "hvd.broadcast_global_variables() does not support eager execution. Please use "
            "`hvd.broadcast_variables(<model/optimizer variables>)` instead."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """A hook for MonitoredTrainingSession: broadcasts all global variables once the session is there.

    Args:
        root_rank: global rank whose values are right: those initialized or restored there.
        device: where TensorFlow places the operation; "" leaves that to it.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Adds the operation to the graph."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self.bcast_op)


def assigned(variable: Any, value: tf.Tensor) -> Any:
    """The assignment; also to the variables without resources that TensorFlow 1 has."""
    if variable.dtype._is_ref_dtype:
        return tf.compat.v1.assign(variable, value).op
    return variable.assign(value, read_value=False)
