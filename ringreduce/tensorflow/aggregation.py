"""Gradients added up on a rank for several passes before they are reduced, for optimizers of TensorFlow 1."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError
from ringreduce.tensorflow.variables import VariableRef

Reduce = Callable[[list[Any], list[Any]], list[Any]]


class LocalAggregation:
    """Adds up gradients and reduces the sums in every n-th pass; updates wait until then.

    Works eagerly, in tf.function and in graphs of TensorFlow 1. There the sums and the counter are local variables:
    `tf.compat.v1.local_variables_initializer()` has to run, as MonitoredSession does by itself, or an initializer of
    `variables`.

    Args:
        passes: n, at least 1.
        reduce: of gradients, None among them, and their variables; collective.
        sparse_as_dense: whether IndexedSlices are added up as dense tensors; else they are refused.
        average: whether the reduced sums are divided by n.

    `counter` is a variable: how many passes have been added up since the last reduction; None before the first one.
    """

    def __init__(self, passes: int, reduce: Reduce, sparse_as_dense: bool, average: bool) -> None:
        self._passes = passes
        self._reduce = reduce
        self._sparse_as_dense = sparse_as_dense
        self._average = average
        self._sums: list[Any] = []
        self._variables: list[VariableRef] = []
        self.counter: Any = None

    @property
    def variables(self) -> list[Any]:
        """The counter and the sums; none before the first pass."""
        return [] if self.counter is None else [self.counter, *self._sums]

    def add(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """One pass. In the n-th the reduced sums, which are then zero again; otherwise what there is so far."""
        if any(isinstance(grad, tf.IndexedSlices) for grad in grads) and not self._sparse_as_dense:
            raise InvalidArgumentError(
                "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is False."
            )
        places = [at for at, grad in enumerate(grads) if grad is not None]
        dense = [tf.convert_to_tensor(grads[at]) for at in places]
        self._prepare(dense, [variables[at] for at in places])
        with after(self.counter.assign_add(1, read_value=False)):
            added = [total.assign_add(grad) for total, grad in zip(self._sums, dense, strict=True)]
        with after(*map(tf.convert_to_tensor, added)):
            result = tf.cond(
                self.counter >= self._passes,
                lambda: self._reduced(places, variables),
                lambda: [tf.identity(total) for total in self._sums],
            )
        result = [result] if len(places) == 1 and not isinstance(result, (list, tuple)) else list(result)
        given: list[Any] = [None] * len(grads)
        for at, one in zip(places, result, strict=True):
            given[at] = one
        return given

    def apply(
        self, update: Callable[[], Any], grads: Sequence[Any], otherwise: Callable[[], Any] = lambda: None
    ) -> Any:
        """Runs an update where the last pass was an n-th one, or none was made; otherwise calls the other function.

        The pass has set the counter back, and not this: a pass may be applied in two calls, each with some of the
        variables, or in none, and gradients that another has reduced are applied at once.
        """
        if self.counter is None:
            return update()

        def now() -> Any:
            with after(update()):
                return tf.constant(True)

        def later() -> Any:
            with after(otherwise()):
                return tf.constant(False)

        with after(*grads):
            applied = tf.cond(tf.equal(self.counter, 0), now, later)
        return None if tf.executing_eagerly() else tf.group(applied)

    def _reduced(self, places: list[int], variables: Sequence[Any]) -> list[Any]:
        sums: list[Any] = [None] * len(variables)  # with None at its places, which are to be the same on all ranks
        for at, total in zip(places, self._sums, strict=True):
            sums[at] = tf.identity(total)
        everything = self._reduce(sums, list(variables))
        reduced = [everything[at] for at in places]
        if self._average:
            reduced = [one / tf.constant(self._passes, one.dtype) for one in reduced]
        with after(*reduced):
            zeroed = [total.assign(tf.zeros_like(total), read_value=False) for total in self._sums]
        with after(*zeroed):
            back = self.counter.assign(0, read_value=False)
        with after(back):
            return [tf.identity(one) for one in reduced]

    def _prepare(self, grads: list[Any], variables: list[Any]) -> None:
        if self.counter is not None:
            if [VariableRef(variable) for variable in variables] != self._variables:
                raise InvalidArgumentError(
                    f"backward_passes_per_step: {len(grads)} variables have a gradient, {len(self._sums)} had one in "
                    "the first pass; they must be the same ones in the same order in every pass"
                )
            return
        self._variables = [VariableRef(variable) for variable in variables]
        with tf.init_scope():
            self.counter = _local(0, tf.int64, "passes")
            self._sums = [
                _local(tf.zeros(variable.shape, grad.dtype), grad.dtype, "sum")
                for grad, variable in zip(grads, variables, strict=True)
            ]


def _local(value: Any, dtype: tf.DType, name: str) -> Any:
    return tf.compat.v1.Variable(
        value,
        dtype=dtype,
        name=f"ringreduce/{name}",
        trainable=False,
        use_resource=True,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )


def after(*operations: Any) -> contextlib.AbstractContextManager[Any]:
    """What is made within runs after these, in every kind of graph. Eagerly they have run."""
    after: contextlib.AbstractContextManager[Any] = tf.control_dependencies(
        [one for one in operations if one is not None]
    )
    return after
