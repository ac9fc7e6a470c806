"""A model that trains, as callbacks see and change it: Keras 2, eagerly and in graphs of TensorFlow 1."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.api._v1.keras.backend import get_session

from ringreduce import tensorflow as hvd
from ringreduce.keras.legacy.functions import broadcast_variables as broadcast_variables
from ringreduce.tensorflow.variables import VariableRef

VARIABLE = "tf.Variable"
"""What is_variable() asks for."""

log = logging.getLogger("ringreduce")


def is_built(model: Any) -> bool:
    """Whether the model has its variables; if so, the optimizer is made to have them too."""
    if not all(layer.built for layer in model._flatten_layers()):
        return False
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer):
        optimizer._create_all_weights(model.trainable_variables)
    else:
        optimizer.build(model.trainable_variables)
    return True


def broadcast(model: Any, root_rank: int, local_variables: Iterable[Any]) -> None:
    """Gives the variables of the model and the optimizer, but for local ones, the values of a rank. Collective.

    In a graph of TensorFlow 1 these are all of its global variables.
    """
    local = {VariableRef(variable) for variable in local_variables}
    variables = [*model.variables, *optimizer_variables(model.optimizer)]
    if not tf.executing_eagerly():
        variables = tf.compat.v1.global_variables()
    operation = hvd.broadcast_variables([one for one in variables if VariableRef(one) not in local], root_rank)
    if operation is not None:
        get_session().run(operation)


def learning_rate(model: Any) -> float:
    """What the optimizer's next step takes."""
    optimizer = model.optimizer
    rate = optimizer.learning_rate
    if isinstance(rate, tf_keras.optimizers.schedules.LearningRateSchedule):
        rate = rate(optimizer.iterations)
    return float(tf_keras.backend.get_value(rate))


def scale_momentum(optimizer: Any, factor: float) -> None:
    """Multiplies what SGD and RMSprop remember of former steps, which has the former learning rate in it."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    legacy = tf_keras.optimizers.legacy
    if isinstance(optimizer, (legacy.SGD, legacy.RMSprop)):
        buffers = [v for v in optimizer.variables() if v.name.split(":")[0].endswith("/momentum")]
    elif isinstance(optimizer, (tf_keras.optimizers.SGD, tf_keras.optimizers.RMSprop)):
        buffers = [*getattr(optimizer, "momentums", ()), *getattr(optimizer, "_momentums", ())]
    else:
        if getattr(optimizer, "momentum", 0):
            log.info("momentum_correction: not known for %s, and left out", type(optimizer).__name__)
        return
    for variable in buffers:
        tf_keras.backend.set_value(variable, tf_keras.backend.get_value(variable) * factor)


def synchronize(model: Any) -> None:
    """Nothing: Keras 2 keeps no values aside."""


def optimizer_variables(optimizer: Any) -> Sequence[Any]:
    """The optimizer's state, and a dynamic loss scale, which LossScaleOptimizer.variables leaves out."""
    variables = optimizer.variables  # of tf_keras.optimizers a list that can be called
    state = list(variables() if callable(variables) else variables)
    if getattr(optimizer, "dynamic_counter", None) is not None:
        state += [optimizer._loss_scale.current_loss_scale, optimizer.dynamic_counter]
    return state


def name_of(variable: Any) -> str:
    """The name that the variable has within the model."""
    return str(variable.name)


def array_of(variable: Any) -> np.ndarray:
    """The value. Outside of graphs."""
    return np.asarray(variable.numpy())


def is_variable(one: Any) -> bool:
    """Whether it is a variable."""
    return isinstance(one, tf.Variable)


def is_one_of(variable: Any, others: Iterable[Any]) -> bool:
    """Whether the variable is among others."""
    return VariableRef(variable) in {VariableRef(other) for other in others}
