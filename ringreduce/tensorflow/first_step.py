"""Whether the ranks train from the same variables, for optimizers of TensorFlow 1: compared once, after a second step.

By then scripts have broadcast what they made in the first step, as Horovod's do; and what began alike is alike after a
step, because gradients are the same on all ranks. All of it is operators of TensorFlow, so that it works in functions
and in graphs, and that a graph can be exported and run elsewhere.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import tensorflow as tf

from ringreduce import config
from ringreduce.basics import rank
from ringreduce.collectives.ops import Max, Sum
from ringreduce.common import same_start
from ringreduce.errors import UnavailableError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow.aggregation import after
from ringreduce.tensorflow.collectives import allreduce
from ringreduce.tensorflow.functions import broadcast_variables
from ringreduce.tensorflow.native.running import ask, id_of
from ringreduce.tensorflow.variables import VariableRef, plain

CURE = (
    "Call hvd.broadcast_variables() for the model's and the optimizer's variables before or after the first step, or "
    "give hvd.BroadcastGlobalVariablesHook(0) to MonitoredTrainingSession"
)


class FirstStep:
    """One optimizer's comparisons: one for each graph and each list of variables that it steps.

    Args:
        name: of the optimizer; the same on all ranks.
        process_set: the ranks that take part.
    """

    def __init__(self, name: str, process_set: ProcessSet) -> None:
        self._name = name
        self._process_set = process_set
        self._flags: dict[Any, _Flags] = {}

    def after(self, step: Any, variables: Sequence[Any], optimizer: Any) -> Any:
        """Compares after the second step. Collective until it has compared.

        Args:
            step: the operation that is a step; None where it has been made.
            variables: that it changes, of the same number on all ranks and in the same order.
            optimizer: whose slots of these variables are compared too; None: they are the rank's own.

        Returns:
            The step and the comparison as one operation; None where both have been made.

        Raises:
            MismatchError: RINGREDUCE_CHECK_PARAMETERS is "error" and something differs, or it has several values.
                Functions and sessions raise tf.errors.InvalidArgumentError.
            UnavailableError: it is "broadcast", and there are variables without resources, of TensorFlow 1.
        """
        if not self._process_set.included() or self._process_set.size() == 1:
            return step
        named = [(plain(one), one.name) for one in variables]
        # In this order: optimizer.variables() has one of names, which count what else a rank has made.
        for slot in () if optimizer is None else sorted(optimizer.get_slot_names()):
            of_slot = [optimizer.get_slot(variable, slot) for variable in variables]
            named += [(plain(one), f"the optimizer's {one.name}") for one in of_slot if one is not None]
        flags = self._flags_of([one for one, _ in named[: len(variables)]])
        comparison = _Comparison(flags.operation, self._process_set, named)
        with after(step):
            done = tf.raw_ops.VarIsInitializedOp(resource=flags.is_compared)
            compared = tf.cond(done, _true, lambda: comparison.of_step(flags.has_stepped, flags.is_compared))
        return None if tf.executing_eagerly() else tf.group(*[one for one in (step, compared) if one is not None])

    def _flags_of(self, variables: Sequence[Any]) -> _Flags:
        """Of these variables, in this graph; eagerly, and in functions, in the process."""
        with tf.init_scope(), tf.device("CPU:0"):
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            stepped = (graph, tuple(VariableRef(one) for one in variables))
            if stepped not in self._flags:
                # By set and ranks: others, which compare nothing, shall count the next ones alike.
                name = f"{self._name}.{id_of(self._process_set)}"
                made = _made_eagerly if graph is None else _made.setdefault(graph, Counter())
                counted = (name, tuple(self._process_set.ranks))
                made[counted] += 1
                operation = f"{name}.first_step_{made[counted]}"
                unique = f"{operation}.{next(_flags_made)}"
                self._flags[stepped] = _Flags(operation, _flag(f"{unique}.step"), _flag(f"{unique}.comparison"))
            return self._flags[stepped]


class _Flags(NamedTuple):
    """Two variables that nobody has to initialize: they are set once there has been a step, and the comparison."""

    operation: str
    """The comparison's name, the same on all ranks."""
    has_stepped: Any
    is_compared: Any


class _Comparison:
    """Args: name, of its operations; process_set; named: variables and what they are called."""

    def __init__(self, name: str, process_set: ProcessSet, named: Sequence[tuple[Any, str]]) -> None:
        self._name = name
        self._process_set = process_set
        self._mode = config.choice(same_start.KNOB)
        self._named = [one for one in named if one[0].dtype.size in same_start.ELEMENTS and not _is_opaque(one[0])]

    def of_step(self, has_stepped: Any, is_compared: Any) -> Any:
        """Compares if all ranks have stepped before, and none has joined: those take part with zeros."""
        stepped = tf.cast(tf.raw_ops.VarIsInitializedOp(resource=has_stepped), tf.int64)
        counts = self._allreduce(tf.stack([tf.constant(1, tf.int64), stepped]), Sum, "ranks")
        with after(counts), after(_set(has_stepped)):
            is_due = tf.reduce_all(tf.equal(counts, self._process_set.size()))
        return tf.cond(is_due, lambda: self._compared(is_compared), _false)

    def _compared(self, is_compared: Any) -> Any:
        layout = repr([(str(one.shape), one.dtype.base_dtype.name) for one, _ in self._named])
        digest = 0 if self._mode == "off" else int.from_bytes(hashlib.sha256(layout.encode()).digest()[:7], "big")
        settings = [same_start.MODES.index(self._mode), digest]
        same = self._are_same(tf.constant(settings, tf.int64), "layout")
        text = (
            f"MismatchError: {same_start.KNOB} is {self._mode} on rank {rank()}, and not the same on all ranks; set it "
            "for all of them"
        )
        with after(ask(tf.debugging.Assert, same[0], [text])):
            done = _true() if self._mode == "off" else tf.cond(same[1], self._by_values, self._by_layout)
        with after(done), after(_set(is_compared)):
            return tf.constant(True)

    def _by_layout(self) -> Any:
        return self._report(tf.constant("the ranks have state of other parameters, or of another dtype"))

    def _by_values(self) -> Any:
        if not self._named:
            return _true()
        sums: list[tf.Tensor] = []
        for variable, _ in self._named:
            with after(*sums[-1:]):  # one after the other: each takes 11 bytes for an element meanwhile
                sums += _sums(variable)
        same = self._are_same(tf.stack(sums), "values")
        differs = tf.logical_not(tf.reduce_all(tf.reshape(same, [-1, 2]), axis=1))
        return tf.cond(tf.reduce_any(differs), lambda: self._differing(differs), _true)

    def _differing(self, differs: tf.Tensor) -> Any:
        if self._mode == "broadcast":
            if any(one.dtype._is_ref_dtype for one, _ in self._named):
                raise UnavailableError(f"{same_start.KNOB}=broadcast needs variables made with use_resource=True")
            root = self._process_set.ranks[0]
            with after(broadcast_variables([one for one, _ in self._named], root, self._process_set)):
                return tf.constant(True)
        first = tf.gather([name for _, name in self._named], tf.argmax(tf.cast(differs, tf.int32)))
        count = tf.strings.as_string(tf.math.count_nonzero(differs))
        middle = " is not the same on all ranks; "
        return self._report(tf.strings.join([first, middle, count, f" of {len(self._named)} tensors differ"]))

    def _report(self, text: tf.Tensor) -> Any:
        """One warning in the job, or an error on all ranks."""
        text = same_start.report_around(text, CURE, tf.strings.join)
        if self._mode != "warn":
            with after(ask(tf.debugging.Assert, False, [tf.strings.join(["MismatchError: ", text])])):
                return tf.constant(True)
        if self._process_set.group.rank != 0:
            return tf.constant(True)
        if tf.executing_eagerly():
            warnings.warn(text.numpy().decode(), RuntimeWarning, stacklevel=config.users_level())
            return tf.constant(True)
        with after(tf.print("RuntimeWarning:", text, output_stream=sys.stderr)):
            return tf.constant(True)

    def _are_same(self, values: tf.Tensor, what: str) -> tf.Tensor:
        """Of each integer, whether all ranks have the same: whether its maximum is its minimum, in one operation."""
        largest = self._allreduce(tf.concat([values, tf.bitwise.invert(values)], 0), Max, what)
        high, low = tf.split(largest, 2)
        return tf.equal(high, tf.bitwise.invert(low))

    def _allreduce(self, values: tf.Tensor, op: int, what: str) -> tf.Tensor:
        name = f"{self._name}.{what}"
        return allreduce(values, op=op, name=name, process_set=self._process_set, ignore_name_scope=True)


def _sums(variable: Any) -> list[tf.Tensor]:
    """Two sums of a variable's bits: of all elements, and of every third."""
    value = tf.reshape(variable.read_value(), [-1])
    value = tf.cast(value, tf.int8) if value.dtype == tf.bool else value
    bits = tf.cast(tf.bitcast(value, {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[value.dtype.size]), tf.int64)
    return [tf.reduce_sum(bits), tf.reduce_sum(bits[::3])]


def _is_opaque(variable: Any) -> bool:
    return variable.dtype.base_dtype in (tf.string, tf.resource, tf.variant)


def _flag(name: str) -> Any:
    return tf.raw_ops.VarHandleOp(dtype=tf.bool, shape=[], shared_name=f"ringreduce/{name}")


def _set(flag: Any) -> Any:
    return tf.raw_ops.AssignVariableOp(resource=flag, value=tf.constant(True))


def _true() -> tf.Tensor:
    return tf.constant(True)


def _false() -> tf.Tensor:
    return tf.constant(False)


_made: WeakKeyDictionary[Any, Counter[Any]] = WeakKeyDictionary()
"""By graph: how many comparisons of optimizers of each name there are."""
_made_eagerly: Counter[Any] = Counter()
_flags_made = itertools.count()
