"""Copies of models of Keras 2, by copy and pickle: what was distributed stays so.

Keras 2 copies a model by what it writes to a file, and files have the plain optimizer. A copy of that would train
alone, without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tf_keras

from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.legacy.distributed import GradientReduction
from ringreduce.keras.settings import Settings, with_registered_set


def reduction_of(optimizer: Any) -> GradientReduction | None:
    """The reduction of a DistributedOptimizer, also of one within a LossScaleOptimizer; None for others."""
    found = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_reduction", None)
    return found if isinstance(found, GradientReduction) else None


def watch() -> None:
    """Has copies of all models made here; those that are not distributed see no difference."""
    for name, made in (("__reduce__", _reduced), ("__deepcopy__", _copied)):  # __copy__ calls the latter
        plain = vars(tf_keras.Model)[name]
        if not hasattr(plain, "ringreduce_copies"):
            setattr(tf_keras.Model, name, _watched(plain, made))


def _watched(plain: Callable[..., Any], made: Callable[..., Any]) -> Any:
    @functools.wraps(plain)
    def watched(self: Any, *args: Any) -> Any:
        if other := next(_others(self), ""):
            raise InvalidArgumentError(
                f"a copy of this model would have a plain optimizer in place of the DistributedOptimizer {other}, and "
                "train alone: make a new model, and new optimizers"
            )
        reduction = reduction_of(getattr(self, "optimizer", None))
        if reduction is None:
            return plain(self, *args)
        _check(self, reduction)
        return made(plain(self, *args), reduction.settings, reduction.devices)

    watched.ringreduce_copies = True  # type: ignore[attr-defined]
    return watched


def _others(model: Any) -> Iterator[str]:
    """Names of distributed optimizers beside `optimizer`: attributes, also in lists and dicts, and of inner models."""
    for layer in model._flatten_layers():
        for name, one in vars(layer).items() if isinstance(layer, tf_keras.Model) else ():
            if name.startswith("_self_"):  # TensorFlow's tracking, which names all attributes again
                continue
            inner = one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else [one]
            if (layer is not model or name != "optimizer") and any(reduction_of(each) is not None for each in inner):
                yield name if layer is model else f"{layer.name}.{name}"


def _check(model: Any, reduction: GradientReduction) -> None:
    """Raises InvalidArgumentError where a copy cannot be distributed as the model is."""
    is_grouped = not isinstance(reduction.settings.groups, int | None)
    if is_grouped or reduction.local_variables or reduction.local_layers:
        reason = f"with {'groups of' if is_grouped else 'local'} variables"
    elif not model.built:  # Keras takes its attributes one by one then, optimizer and all
        reason = "that has no variables yet"
    else:
        return
    raise InvalidArgumentError(
        f"a model with a DistributedOptimizer {reason} cannot be copied or pickled: copy the model by clone_model() "
        "and set_weights(), and compile the copy with a DistributedOptimizer of its own"
    )


def _reduced(plain: tuple[Any, ...], settings: Settings, devices: tuple[str, str]) -> tuple[Any, ...]:
    """What __reduce__() returns: a function that makes the copy, and its arguments."""
    return _made, (*plain, settings, devices)


def _made(make: Callable[..., Any], args: tuple[Any, ...], settings: Settings, devices: tuple[str, str]) -> Any:
    return _copied(make(*args), settings, devices)


def _copied(model: Any, settings: Settings, devices: tuple[str, str]) -> Any:
    """The model that Keras has made, with its plain optimizer distributed again."""
    from ringreduce.keras.legacy.wrapping import wrap  # which has us watch copies

    if getattr(model, "optimizer", None) is not None:
        model.optimizer = wrap(model.optimizer, GradientReduction(with_registered_set(settings), devices))
    return model
