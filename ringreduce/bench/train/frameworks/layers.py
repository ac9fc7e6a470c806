"""The models and optimizers made of Keras, for the frameworks tensorflow and keras."""

from __future__ import annotations

from typing import Any

from ringreduce.bench.train.frameworks import weights
from ringreduce.bench.train.optimizers import OPTIMIZERS


def make(keras: Any, name: str, seed: int) -> Any:
    """The fp32 model, built, with the weights of weights.py."""
    layers = [keras.Input((28, 28, 1))]
    shapes = weights.LAYERS[name]
    for index, shape in enumerate(shapes):
        if len(shape) == 4:
            layers += [keras.layers.Conv2D(shape[-1], shape[:2], activation="relu"), keras.layers.AveragePooling2D(2)]
            continue
        if index == 0 or len(shapes[index - 1]) == 4:
            layers.append(keras.layers.Flatten())
        layers.append(keras.layers.Dense(shape[-1], activation="relu" if index < len(shapes) - 1 else None))
    model = keras.Sequential(layers)
    model.set_weights(weights.make(name, seed))
    return model


def optimizer(keras: Any, name: str, lr: float) -> Any:
    """The optimizer of that name; momentum is 0.9, and Adam's epsilon that of the other frameworks."""
    lr *= OPTIMIZERS[name]
    if name == "adam":
        return keras.optimizers.Adam(lr, epsilon=1e-8)
    return keras.optimizers.SGD(lr, momentum=0.9 if name == "momentum" else 0.0)
