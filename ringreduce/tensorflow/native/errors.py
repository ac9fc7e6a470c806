"""Errors of operators: each is both TensorFlow's class and ours where Python sees it being raised.

A kernel's message begins with the name of our class. What a tf.function raises is TensorFlow's class alone;
ours_of() finds ours in it.
"""

from __future__ import annotations

import re

import tensorflow as tf

from ringreduce import errors

_NODE = re.compile(r"^\{\{function_node [^{}]*\}\} ")
_CLASS = re.compile(r"\b(" + "|".join(name for name in vars(errors) if name.endswith("Error")) + r"): ")


def ours_of(error: tf.errors.OpError) -> type[errors.Error] | None:
    """The class in ringreduce.errors of an error that a kernel of ours has reported; None for others."""
    found = _CLASS.search(error.message or "")
    return None if found is None else getattr(errors, found.group(1))


def with_our_class(error: tf.errors.OpError) -> tf.errors.OpError:
    """The same error as an object that is caught under TensorFlow's class and under ours."""
    ours = ours_of(error)
    if ours is None:
        return error
    theirs = type(error)
    if (theirs, ours) not in _both:
        _both[theirs, ours] = type(ours.__name__, (theirs, ours), {"__module__": ours.__module__})
    return _both[theirs, ours](error.node_def, error.op, _NODE.sub("", error.message))


_both: dict[tuple[type[tf.errors.OpError], type[errors.Error]], type[tf.errors.OpError]] = {}
