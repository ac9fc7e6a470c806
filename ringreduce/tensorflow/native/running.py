"""How an operator is put into the graph, or run at once: its name, its place, its errors.

Eagerly, operations without a name are matched by the order of calls, as everywhere. In a graph every operation has a
name, so that it does not matter in which order TensorFlow runs them: the name of the function that is traced and of the
node in it. Numbers that TensorFlow appends to functions' names count what the process has traced so far, which may
differ between ranks, and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ringreduce.process_sets import UNREGISTERED, ProcessSet
from ringreduce.tensorflow.native.errors import with_our_class


def run(
    operator: Callable[..., Any], *inputs: Any, name: str | None, ignore_name_scope: bool = False, **attrs: Any
) -> Any:
    """operator(*inputs), an operation that has a name."""
    if tf.executing_eagerly():
        return ask(operator, *inputs, tensor_name=name or "", **attrs)
    return ask(operator, *inputs, tensor_name=_name_in_graph(operator, name, ignore_name_scope), **attrs)


def ask(operator: Callable[..., Any], *inputs: Any, **attrs: Any) -> Any:
    """operator(*inputs), an operation that the other ranks need not know of."""
    if tf.executing_eagerly():
        try:
            return operator(*inputs, **attrs)
        except tf.errors.OpError as error:
            raise with_our_class(error) from None
    with tf.xla.experimental.jit_scope(compile_ops=False):  # XLA may compile what is around it, unasked
        return operator(*inputs, **attrs)


def id_of(process_set: ProcessSet | int) -> int:
    """The process set as operators know it. Raises InvalidArgumentError when it is not registered."""
    if isinstance(process_set, int):
        return process_set
    if process_set.process_set_id is None:
        UNREGISTERED.collective  # noqa: B018  # raises what every use of an unregistered set raises
    return process_set.process_set_id or 0


def _name_in_graph(operator: Callable[..., Any], name: str | None, ignore_name_scope: bool) -> str:
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    if name is not None:
        return name if ignore_name_scope or not scope else f"{scope}/{name}"
    function = re.sub(r"_\d+$", "", getattr(graph, "name", ""))
    with tf.name_scope("") if ignore_name_scope else tf.name_scope(scope + "/" if scope else ""):
        node = graph.unique_name(operator.__name__, mark_as_used=True)
    return f"{function}/{node}"
