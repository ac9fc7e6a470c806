"""Copies of models of Keras 2, by copy and pickle: those of a model with a DistributedOptimizer are refused.

Keras 2 copies a model by what it writes to a file, and files have the plain optimizer. A copy of that would train
alone, without a word.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tf_keras

from ringreduce.errors import InvalidArgumentError


def watch(is_distributed: Callable[[Any], bool]) -> None:
    """Has copies of all models refused where a distributed optimizer is a part of them.

    Args:
        is_distributed: whether an object is a distributed optimizer.
    """
    for name in ("__reduce__", "__deepcopy__"):  # __copy__ calls the latter
        plain = vars(tf_keras.Model)[name]
        if not hasattr(plain, "ringreduce_copies"):
            setattr(tf_keras.Model, name, _watched(plain, is_distributed))


def _watched(plain: Callable[..., Any], is_distributed: Callable[[Any], bool]) -> Any:
    @functools.wraps(plain)
    def watched(self: Any, *args: Any) -> Any:
        if any(map(is_distributed, _parts(self))):
            raise InvalidArgumentError(
                "a copy or pickle of this model of Keras 2 would have a plain optimizer in place of the "
                "DistributedOptimizer, and train alone: write a file by model.save() and read it by hvd.load_model(), "
                "or copy the model by clone_model() and set_weights(), and compile it with a DistributedOptimizer of "
                "its own"
            )
        return plain(self, *args)

    watched.ringreduce_copies = True  # type: ignore[attr-defined]
    return watched


def _parts(model: Any) -> list[Any]:
    """What the model and the models in it have as attributes, also in lists and dicts."""
    parts: list[Any] = []
    for layer in model._flatten_layers():
        if isinstance(layer, tf_keras.Model):
            for one in vars(layer).values():
                parts += one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else [one]
    return parts
