"""LeNet and the MLP of models.py as shapes, with first weights from NumPy: the same in every framework.

Kernels are (height, width, inputs, outputs) and (inputs, outputs), as TensorFlow, Keras and JAX have them by default.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

HIDDEN = 4096

LAYERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "lenet": ((3, 3, 1, 20), (5, 5, 20, 50), (800, 128), (128, 10)),
    "mlp": ((784, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, 10)),
}
"""The shapes of the kernels. A convolution's output goes through relu and means of 2 x 2; all other layers but the last
have a relu."""


def make(model: str, seed: int) -> list[NDArray[np.float32]]:
    """Kernel, bias, kernel, bias, ...: kernels are Xavier-uniform, biases zero."""
    random = np.random.default_rng(seed)
    arrays = []
    for shape in LAYERS[model]:
        fan_in, fan_out = math.prod(shape[:-1]), math.prod(shape[:-2]) * shape[-1]
        bound = math.sqrt(6 / (fan_in + fan_out))
        arrays.append(((random.random(shape, np.float32) * 2 - 1) * np.float32(bound)).astype(np.float32, copy=False))
        arrays.append(np.zeros(shape[-1], np.float32))
    return arrays
