"""An optimizer of Keras in a class that reduces: a subclass of its own class, around the same variables."""

from __future__ import annotations

import types
from typing import Any

import keras

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.keras import copies, loss_scale
from ringreduce.keras.distributed import DistributedMixin
from ringreduce.keras.first_step import FirstStep, watch
from ringreduce.keras.gradient_reduction import GradientReduction


def wrap(optimizer: Any, reduction: GradientReduction) -> Any:
    """The optimizer in a class of its own that reduces by this reduction; the instance shares what it is made of.

    Not by from_config(): that would lose what no configuration has, such as exclude_from_weight_decay().
    """
    watch(keras.callbacks.CallbackList, _first_step_of)
    copies.watch()
    plain = type(optimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(f"DistributedOptimizer takes an optimizer of Keras 3, not {optimizer!r}")
    if isinstance(optimizer, (DistributedMixin, loss_scale.LossScaleMixin)) or isinstance(
        getattr(optimizer, "inner_optimizer", None), DistributedMixin
    ):
        raise InvalidArgumentError("this optimizer is a DistributedOptimizer already")
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    wrapped: Any = object.__new__(
        _subclass(plain, loss_scale.LossScaleMixin if scales else DistributedMixin, reduction)
    )
    vars(wrapped).update(vars(optimizer))
    if scales:
        loss_scale.watch()
        wrapped.inner_optimizer = wrap(optimizer.inner_optimizer, reduction)
    else:
        settings = reduction.settings
        _accumulate(wrapped, settings.backward_passes_per_step, settings.average_aggregated_gradients)
    return wrapped


def _first_step_of(optimizer: Any) -> FirstStep | None:
    reduction = copies.reduction_of(optimizer)
    return None if reduction is None else reduction.first_step


def _accumulate(wrapped: Any, passes: int, average: bool) -> None:
    """Has the optimizer itself accumulate, unless there is one pass to a step."""
    own = wrapped.gradient_accumulation_steps
    if passes == 1:
        return
    accumulates = hasattr(wrapped, "_clip_gradients") and wrapped._plain.apply is keras.optimizers.Optimizer.apply
    if own == passes and (accumulates or average):  # an apply() around Keras's takes its mean
        return
    if own and own != passes:
        raise InvalidArgumentError(
            f"backward_passes_per_step={passes}, and the optimizer has gradient_accumulation_steps={own}: give one"
        )
    if not accumulates:
        raise UnavailableError(
            f"backward_passes_per_step: {wrapped._plain.__name__} has an apply() of its own, which does not accumulate "
            "or takes the mean of passes (average_aggregated_gradients=True)"
        )
    if wrapped.built:
        raise InvalidArgumentError(
            "backward_passes_per_step needs an optimizer that is not built yet, for it to have a place for the sums; "
            f"or give the optimizer gradient_accumulation_steps={passes} when you make it"
        )
    wrapped.gradient_accumulation_steps = passes


def _from_config(cls: Any, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
    """An optimizer of this configuration, distributed with the settings and local variables of this one."""
    more = {} if custom_objects is None else {"custom_objects": custom_objects}
    return wrap(cls._plain.from_config(config, **more), cls._reduction.another())


def _subclass(plain: type, mixin: type, reduction: GradientReduction) -> Any:
    """A class that Keras writes to files as the plain class, so that they can be read without ringreduce."""

    public = next((c for c in plain.__mro__ if getattr(keras.optimizers, c.__name__, None) is c), None)
    same_name = public is not None and public.__name__ == plain.__name__
    namespace = {
        "__module__": "keras.optimizers" if same_name else plain.__module__,
        "__doc__": plain.__doc__,
        "__qualname__": plain.__qualname__,
        "from_config": classmethod(_from_config),
        "_plain": plain,
        "_reduction": reduction,
    }
    made = types.new_class(plain.__name__, (mixin, plain), {}, lambda body: body.update(namespace))
    registered = keras.saving.get_registered_name(plain)
    if ">" in registered:  # both classes shall have the name, and the name shall mean the plain one
        package, name = registered.split(">", 1)
        for one in (made, plain):
            keras.saving.register_keras_serializable(package, name)(one)
    return made
