"""How an operator is put into the graph, or run at once: its order, its name, its errors.

Operators that communicate take a token, a resource that stands for nothing: so a tf.function runs them in program
order, also where they are within functions that it calls, branches and loops.

Graphs of tf.compat.v1 have no program order, and an order of our own is none that their sessions could use: a session
that fetches one operation would also run all before it. There each operator is the deferred one of its kind, which
holds no thread of TensorFlow's while it waits, so that ranks may come to them in any order.

Eagerly, operations without a name are matched by the order of calls, as everywhere. In a graph every operation has a
name, so that it does not matter in which order TensorFlow runs them: the name of the function that is being traced, and
the operation's number there. So it is the same on all ranks that trace the same collectives, whatever else they trace,
and however often: numbers that TensorFlow appends to functions' names, and Keras to layers', count what the process has
made so far.

In a graph of tf.compat.v1, which has no name, the operation's name has the name of its first input too: of two graphs
whose sessions run at the same time each may have a first all-reduce, and a number alone would match one with the other.

AutoGraph leaves these functions as they are: what it makes of one has other globals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from ringreduce import _core
from ringreduce.collectives.buffers import CODES
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import UNREGISTERED, ProcessSet, group_of
from ringreduce.tensorflow.native.errors import with_our_class
from ringreduce.tensorflow.native.library import deferred

OPERATORS = "Ringreduce"
"""How the types of all our operators begin."""


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def run(
    operator: Callable[..., Any], *inputs: Any, name: str | None, ignore_name_scope: bool = False, **attrs: Any
) -> Any:
    """operator(*inputs), an operation that has a name."""
    called = name or "" if tf.executing_eagerly() else _name_in_graph(operator, inputs, name, ignore_name_scope)
    return communicate(operator, *inputs, tensor_name=called, **attrs)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def communicate(operator: Callable[..., Any], *inputs: Any, **attrs: Any) -> Any:
    """operator(*inputs, token), an operation that other ranks take part in."""
    if not tf.executing_eagerly():
        return ask(operator if is_ordered() else deferred(operator), *inputs, order_token(), **attrs)
    _core.framework_begin_eager()
    try:
        return ask(operator, *inputs, order_token(), **attrs)
    finally:
        _core.framework_end_eager()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def ask(operator: Callable[..., Any], *inputs: Any, **attrs: Any) -> Any:
    """operator(*inputs), an operation that the other ranks need not know of."""
    if tf.executing_eagerly():
        try:
            return operator(*inputs, **attrs)
        except tf.errors.OpError as error:
            _core.framework_raise()  # what a signal's handler raised while the operator waited: KeyboardInterrupt
            raise with_our_class(error) from None
    with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA may compile what is around it, unasked
        return operator(*inputs, **attrs)


def operand(value: Any) -> tf.Tensor:
    """What can be communicated, as a tensor. Raises InvalidArgumentError for a type that cannot."""
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype.name not in CODES:
        supported = ", ".join(CODES)
        raise InvalidArgumentError(f"Tensor type {tensor.dtype.name} is not supported; supported: {supported}")
    return tensor


def is_ordered() -> bool:
    """Whether operators run in the order in which they are made: eagerly, and in a tf.function outside of v1 graphs."""
    if tf.executing_eagerly():
        return True
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return False
    # Those of tf.compat.v1.wrap_function() are like graphs of TensorFlow 1.
    return bool(outermost(tf.compat.v1.get_default_graph())._add_control_dependencies)


def outermost(graph: Any) -> Any:
    """The function, or the graph, that this one is in, with all functions between."""
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph


def function_of(graph: Any) -> Any:
    """Of a branch, or a loop's body: the function that it is in."""
    while _is_within_a_function(graph):
        graph = graph.outer_graph
    return graph


def _is_within_a_function(graph: Any) -> bool:
    return getattr(graph, "is_control_flow_graph", False) and bool(graph.outer_graph.building_function)


def order_token() -> tf.Tensor:
    """The last argument of an operator that communicates. One for the process; in TensorFlow 1 one for each graph."""
    global _eager_token
    if tf.compat.v1.executing_eagerly_outside_functions():
        if _eager_token is None:
            with tf.init_scope(), tf.device("CPU:0"):
                _eager_token = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="ringreduce_order")
        return _eager_token if tf.executing_eagerly() else _token_in(tf.compat.v1.get_default_graph())
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()
        if not hasattr(graph, "_ringreduce_token"):  # kept by the graph, whose node it is
            with tf.device("CPU:0"), tf.control_dependencies(None), tf.name_scope(""):
                # No variable: tf.custom_gradient looks for the Python object of each that a function depends on.
                graph._ringreduce_token = tf.raw_ops.MutexV2(shared_name="ringreduce_order", name="ringreduce_order")
        return graph._ringreduce_token


def _token_in(graph: Any) -> tf.Tensor:
    """The token as a function has it, and from there a branch or a loop's body: gradients of these take no other."""
    return graph.capture(_token_in(graph.outer_graph) if _is_within_a_function(graph) else _eager_token)


def id_of(process_set: ProcessSet | int) -> int:
    """The process set as operators know it. Raises InvalidArgumentError when it is none, or not registered."""
    if isinstance(process_set, int):
        return process_set
    group: object = group_of(process_set)
    if group is UNREGISTERED:  # also where somebody has given it an id
        UNREGISTERED.collective  # noqa: B018  # raises what every use of an unregistered set raises
    return process_set.process_set_id or 0


def _name_in_graph(
    operator: Callable[..., Any], inputs: Sequence[Any], name: str | None, ignore_name_scope: bool
) -> str:
    graph = tf.compat.v1.get_default_graph()
    if name is not None:
        scope = graph.get_name_scope()
        return name if ignore_name_scope or not scope else f"{scope}/{name}"
    first = next(iter(tf.nest.flatten(inputs)), None)
    return numbered_in_graph(operator.__name__, getattr(first, "name", ""))  # an eager tensor has no name


def numbered_in_graph(kind: str, tensor_name: str) -> str:
    """A name with the function's and the number of this call among those of its kind that the function has.

    The function is the outermost one, which other threads' collectives are not in. A function within it has numbers of
    its own, which stay when the outer one is traced again; so several functions may have the same ones. Their calls
    come in order, but for TensorFlow 1, where all are numbered together.

    Args:
        kind: the operator, or what the caller calls the operation.
        tensor_name: of the operation's first input; "" where it has none. Names in TensorFlow 1 have it, and numbers
            count the operations of one such name, behind those that import_meta_graph() has put into the graph.
    """
    graph = tf.compat.v1.get_default_graph()
    whole = outermost(graph)
    made = _made.setdefault(function_of(graph) if is_ordered() else whole, Counter())
    function = re.sub(r"_\d+$", "", getattr(whole, "name", ""))
    if is_ordered():
        made[kind] += 1
        return f"{function}/{kind}_{made[kind]}"
    stem = f"{function}/{kind}_{tensor_name}" if tensor_name else f"{function}/{kind}"
    present = _present.setdefault(whole, _Present())
    present.look_at(whole)
    made[stem] += 1
    while f"{stem}_{made[stem]}" in present.names:
        made[stem] += 1
    return f"{stem}_{made[stem]}"


class _Present:
    """The names of the operations that a graph of TensorFlow 1 and its functions have, imported ones among them."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._operations = 0
        self._functions: set[Any] = set()

    def look_at(self, graph: Any) -> None:
        """Adds the names of what has been put into the graph since the last look."""
        operations = graph.get_operations()
        for operation in operations[self._operations :]:
            if operation.type.startswith(OPERATORS):
                self._add(operation.node_def)
        self._operations = len(operations)
        for name in graph._functions.keys() - self._functions:
            for node in graph._functions[name].definition.node_def:
                if node.op.startswith(OPERATORS):
                    self._add(node)
            self._functions.add(name)

    def _add(self, node: Any) -> None:
        if "tensor_name" in node.attr:
            self.names.add(node.attr["tensor_name"].s.decode())


_eager_token: tf.Tensor | None = None
_made: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
"""By graph: how many operations of each operator have been put into it, and into what is numbered with it."""
_present: WeakKeyDictionary[Any, _Present] = WeakKeyDictionary()
"""By graph of TensorFlow 1: the names that it has."""
