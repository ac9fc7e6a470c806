"""What a training script calls once, so that all ranks start from the same place; and Python objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from ringreduce import objects
from ringreduce.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow import mpi_ops
from ringreduce.tensorflow.variables import plain, refuse_strategies


class EagerExecutionError(RuntimeError):
    """A function of TensorFlow 1's graphs was called eagerly. Horovod raises RuntimeError."""


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Overwrites variables with the root's.

    Args:
        variables: of TensorFlow or Keras, in the same order on all ranks: model.variables, optimizer.variables.
        root_rank: global rank whose values are right.
        inplace: whether the variables' own memory is broadcast (`broadcast_`); else values are, and assigned.

    Returns:
        In a graph of TensorFlow 1, the operation to run. Otherwise nothing that is needed.

    Raises:
        UnavailableError: a variable belongs to a tf.distribute strategy.
    """
    given = list(variables)
    refuse_strategies("hvd.broadcast_variables", given)
    targets = [plain(variable) for variable in given]
    if not targets or not process_set.included():
        return tf.no_op() if _in_a_graph_to_run() else None
    if inplace:
        return mpi_ops.broadcast_(targets, root_rank, process_set=process_set)
    assignments: list[Any] = []
    for target in targets:
        with tf.control_dependencies(assignments[-1:]):  # one order on all ranks, also in graphs of TensorFlow 1
            value = mpi_ops.broadcast(tf.convert_to_tensor(target), root_rank, process_set=process_set)
            assignments.append(_assigned(target, value))
    return tf.group(*assignments) if _in_a_graph_to_run() else None


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


def _in_a_graph_to_run() -> bool:
    """Whether operations have to be run by a session: in graphs of TensorFlow 1, not in tf.function."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def _assigned(variable: Any, value: tf.Tensor) -> Any:
    """The assignment; also for the variables that TensorFlow 1 has without resources."""
    if tf.executing_eagerly():
        variable.assign(value)
        return value
    return tf.compat.v1.assign(variable, value).op if _is_ref(variable) else variable.assign(value, read_value=False)


def _is_ref(variable: Any) -> bool:
    return bool(variable.dtype._is_ref_dtype)
