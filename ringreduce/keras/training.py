"""A model that trains, as callbacks see and change it: Keras 3. legacy/training.py has the same of Keras 2."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from ringreduce.keras.functions import broadcast_variables as broadcast_variables

VARIABLE = "keras.Variable"
"""What is_variable() asks for."""

log = logging.getLogger("ringreduce")


def is_built(model: Any) -> bool:
    """Whether the model has its variables; if so, the optimizer is made to have them too."""
    if not all(layer.built for layer in model._flatten_layers()):
        return False
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return True


def broadcast(model: Any, root_rank: int, local_variables: Iterable[Any]) -> None:
    """Gives the variables of the model and the optimizer the values of a rank. Collective.

    But for local ones, and for sums of gradients that wait for a step: those are each rank's own.
    """
    synchronize(model)
    local = list(local_variables)
    optimizer = model.optimizer  # None where train_step() has optimizers of its own
    state = [] if optimizer is None else optimizer_variables(optimizer)
    broadcast_variables([v for v in [*model.weights, *state] if not is_one_of(v, local)], root_rank)


def learning_rate(model: Any) -> float:
    """What the optimizer's next step takes."""
    synchronize(model)
    return float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))


def scale_momentum(optimizer: Any, factor: float) -> None:
    """Multiplies what the optimizer remembers of former steps, which has the former learning rate in it.

    Horovod multiplies the coefficient `momentum` for one step, which in Keras 3 is a constant of compiled steps.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(optimizer, "momentum", 0):
        return
    if not isinstance(optimizer, (keras.optimizers.SGD, keras.optimizers.RMSprop)):
        log.info("momentum_correction: not known for %s, and left out", type(optimizer).__name__)
        return
    for name in ("momentums", "_momentums"):
        for variable in getattr(optimizer, name, ()):
            if variable is None:  # of a variable that Keras overwrites with its gradient, as float8's scales
                continue
            scale = keras.ops.convert_to_tensor(factor, dtype=variable.dtype)
            variable.assign(keras.ops.multiply(variable, scale))


def synchronize(model: Any) -> None:
    """Puts into the variables what a trainer keeps aside."""
    if hasattr(model, "jax_state_sync"):  # JAX's trainer keeps values aside while it trains
        model.jax_state_sync()


def optimizer_variables(optimizer: Any) -> Sequence[Any]:
    """The optimizer's state, without what each rank adds up for itself between steps."""
    return [v for v in optimizer.variables if not v.path.endswith("gradient_accumulator")]


def name_of(variable: Any) -> str:
    """The name that the variable has within the model."""
    return str(variable.path)


def array_of(variable: Any) -> np.ndarray:
    """The value. Outside of graphs."""
    return np.asarray(keras.ops.convert_to_numpy(variable))


def is_variable(one: Any) -> bool:
    """Whether it is a variable of Keras, or TensorFlow's own where that is the backend."""
    if isinstance(one, keras.Variable):
        return True
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf  # the backend, so it is there

    return isinstance(one, tf.Variable)


def is_one_of(variable: Any, others: Iterable[Any]) -> bool:
    """Whether the variable is among others, which may be TensorFlow's own."""
    return any(_native(variable) is _native(other) for other in others)


def _native(variable: Any) -> Any:
    """What TensorFlow users may have in hand in place of the Keras variable; the same object each time."""
    return variable.value if keras.backend.backend() == "tensorflow" and hasattr(variable, "value") else variable
