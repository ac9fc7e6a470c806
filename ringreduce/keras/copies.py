"""Copies of models and optimizers, by copy and pickle: what was distributed stays so.

Keras copies by what it writes to a file, and files have the plain optimizer. A copy of that would train alone, without
a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.gradient_reduction import GradientReduction
from ringreduce.keras.settings import Settings, with_registered_set

Reduce = Callable[[Any], tuple[Any, ...]]
"""Keras's __reduce__(): a function that makes the copy, and its arguments."""


def reduction_of(optimizer: Any) -> GradientReduction | None:
    """The reduction of a DistributedOptimizer, also of one within a LossScaleOptimizer; None for others."""
    found = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_reduction", None)
    return found if isinstance(found, GradientReduction) else None


def watch() -> None:
    """Has copies of all models and optimizers made here; those that are not distributed see no difference."""
    for kind, reduced in ((keras.Model, _reduced_model), (keras.optimizers.Optimizer, _reduced_optimizer)):
        plain = kind.__reduce__
        if plain is not object.__reduce__ and not hasattr(plain, "ringreduce_copies"):  # object's: an older Keras 3
            kind.__reduce__ = _watched(plain, reduced)


def _watched(plain: Reduce, reduced: Callable[[Any, Reduce], Any]) -> Any:
    @functools.wraps(plain)
    def __reduce__(self: Any) -> Any:
        return reduced(self, plain)

    __reduce__.ringreduce_copies = True  # type: ignore[attr-defined]
    return __reduce__


def _reduced_model(model: Any, plain: Reduce) -> Any:
    if other := next(_others(model), ""):
        raise InvalidArgumentError(
            f"a copy of this model would have a plain optimizer in place of the DistributedOptimizer {other}, and "
            "train alone: make a new model, and new optimizers"
        )
    reduction = reduction_of(getattr(model, "optimizer", None))
    return plain(model) if reduction is None else (_copied, (*plain(model), _settings(reduction)))


def _others(model: Any) -> Iterator[str]:
    """Names of distributed optimizers beside `optimizer`: attributes, also in lists and dicts, and of inner models."""
    for name, one in vars(model).items():
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else [one]
        # _self_: TensorFlow's tracking, which names all attributes again.
        if name != "optimizer" and not name.startswith("_self_") and any(map(reduction_of, inner)):
            yield name
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.Model) and reduction_of(getattr(layer, "optimizer", None)) is not None:
            yield f"{layer.name}.optimizer"


def _reduced_optimizer(optimizer: Any, plain: Reduce) -> Any:
    reduction = reduction_of(optimizer)
    return plain(optimizer) if reduction is None else (_copied, (*plain(_plain(optimizer)), _settings(reduction)))


def _plain(optimizer: Any) -> Any:
    """The optimizer in its own class, which pickle finds, around the same variables."""
    made = object.__new__(getattr(type(optimizer), "_plain", type(optimizer)))
    vars(made).update(vars(optimizer))
    if hasattr(optimizer, "inner_optimizer"):
        vars(made)["inner_optimizer"] = _plain(optimizer.inner_optimizer)
    return made


def _settings(reduction: GradientReduction) -> Settings:
    """What the copy is given. Raises InvalidArgumentError where variables are a part of it: a copy has others."""
    is_grouped = not isinstance(reduction.settings.groups, int)
    if is_grouped or reduction.local_variables or reduction.local_layers:
        raise InvalidArgumentError(
            f"a DistributedOptimizer with {'groups of' if is_grouped else 'local'} variables, or a model with one, "
            "cannot be copied or pickled: copy the model by keras.models.clone_model() and set_weights(), and compile "
            "the copy with a DistributedOptimizer of its own"
        )
    return reduction.settings


def _copied(make: Callable[..., Any], args: tuple[Any, ...], settings: Settings) -> Any:
    """A model or an optimizer, plain as Keras makes it, that is distributed again."""
    from ringreduce.keras.wrapping import wrap  # which has us watch copies

    settings = with_registered_set(settings)
    made = make(*args)
    if isinstance(made, keras.optimizers.Optimizer):
        return wrap(made, GradientReduction(settings))
    if getattr(made, "optimizer", None) is not None:
        made.optimizer = wrap(made.optimizer, GradientReduction(settings))
    return made
