"""Variables of TensorFlow and of Keras, told apart by what they are, not by value; and those that cannot be served."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError, UnavailableError


class VariableRef:
    """A hashable stand-in for a variable, of TensorFlow or Keras: equal where the variable is the same one."""

    __slots__ = ("_plain", "_variable")

    def __init__(self, variable: Any) -> None:
        self._variable = variable
        self._plain = plain(variable)  # also kept so that its id stays its own

    def deref(self) -> Any:
        """The variable."""
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableRef) and self._plain is other._plain

    def __hash__(self) -> int:
        return id(self._plain)


def plain(variable: Any) -> Any:
    """The tf.Variable in a Keras variable; anything else as it is."""
    if isinstance(variable, tf.Variable):
        return variable
    within = getattr(variable, "_value", None)  # not `value`, which an autocast scope casts
    return within if isinstance(within, tf.Variable) or _distributed(within) else variable


def vars_to_refs(vars: Any) -> Any:
    """Hashable stand-ins for variables: one for one, a tuple for a list, also of lists."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(one) for one in vars)
    return VariableRef(vars)


def refs_to_vars(refs: Any) -> Any:
    """The variables that vars_to_refs() was given, as lists."""
    if isinstance(refs, tuple):
        return [refs_to_vars(one) for one in refs]
    return refs.deref()


def check_local(call: str, one: Any, *others: type) -> None:
    """Raises InvalidArgumentError for what is no variable, such as a layer, and cannot be a rank's own.

    Args:
        others: classes that can, beside variables.
    """
    if not (isinstance(plain(one), (tf.Variable, *others)) or _distributed(plain(one))):
        raise InvalidArgumentError(
            f"{call} takes a variable, such as model.trainable_variables[0], not a {type(one).__name__}"
        )


def refuse_strategies(call: str, values: Iterable[Any] = ()) -> None:
    """Raises UnavailableError for variables of a tf.distribute strategy, and within one that has several replicas."""
    for value in values:
        if _distributed(plain(value)):
            name = getattr(value, "name", "?")
            raise UnavailableError(
                f"{call}: variable {name!r} was created under a tf.distribute strategy's scope and belongs to the "
                f"strategy. {_REMEDY}"
            )
    if tf.distribute.has_strategy() and tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise UnavailableError(f"{call} was called within {type(tf.distribute.get_strategy()).__name__}. {_REMEDY}")


def _distributed(value: Any) -> bool:
    return isinstance(value, tf.distribute.DistributedValues)


_REMEDY = (
    "ringreduce takes the strategy's place: leave the strategy and its scope() out, start one process for each rank "
    "(ringrun -np N python ...), and wrap the tape or the optimizer (docs/user/tensorflow.md has it line by line)"
)
