"""An optimizer of Keras 2 in a class that reduces: a subclass of its own class, around the same variables."""

from __future__ import annotations

import copy
import types
from typing import Any

import tf_keras

from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.first_step import FirstStep, watch
from ringreduce.keras.legacy import copies
from ringreduce.keras.legacy.distributed import SCALED_PASSES, DistributedMixin, GradientReduction


def wrap(optimizer: Any, reduction: GradientReduction) -> Any:
    """The optimizer in a class of its own that reduces so; the instance shares what it is made of.

    Of a LossScaleOptimizer it is the one inside that reduces: scaled gradients, before they are looked at, so that all
    ranks leave out the same steps. With several passes to a step each rank would look at its own between reductions,
    and their scales, unless they are fixed, would go apart: that is refused, here or, where Keras scales around ours,
    in the first pass.
    """
    kinds = (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer)
    if not isinstance(optimizer, kinds):
        raise InvalidArgumentError(f"DistributedOptimizer takes an optimizer of tf_keras here, not {optimizer!r}")
    watch(tf_keras.callbacks.CallbackList, _first_step_of)
    copies.watch()
    inner = getattr(optimizer, "inner_optimizer", None)
    if isinstance(optimizer, DistributedMixin) or isinstance(inner, DistributedMixin):
        raise InvalidArgumentError("this optimizer is a DistributedOptimizer already")
    if inner is not None:
        if optimizer.dynamic and reduction.aggregation is not None and (reduction.settings.process_set.size() or 1) > 1:
            raise InvalidArgumentError(SCALED_PASSES)
        scaled = copy.copy(optimizer)
        vars(scaled)["_optimizer"] = wrap(inner, reduction)
        return scaled
    wrapped = object.__new__(_subclass(type(optimizer), reduction))
    vars(wrapped).update(vars(optimizer))
    return wrapped


def _first_step_of(optimizer: Any) -> FirstStep | None:
    reduction = copies.reduction_of(optimizer)
    return None if reduction is None else reduction.first_step


def _from_config(cls: Any, config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """An optimizer of this configuration, distributed with the settings and local variables of this one."""
    return wrap(cls._plain.from_config(config, *args, **kwargs), cls._reduction.another())


def _subclass(plain: type, reduction: GradientReduction) -> Any:
    """A class that Keras writes to files as the plain class, so that they can be read without ringreduce."""
    namespace = {
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        "__qualname__": plain.__qualname__,
        "from_config": classmethod(_from_config),
        "_plain": plain,
        "_reduction": reduction,
        "_agg_helper": reduction.aggregation,
    }
    namespace |= {name: value for name, value in vars(plain).items() if name.startswith("_keras_api_names")}
    return types.new_class(plain.__name__, (DistributedMixin, plain), {}, lambda body: body.update(namespace))
