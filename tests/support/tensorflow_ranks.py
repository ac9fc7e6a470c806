"""What the tests of ringreduce.tensorflow share: its environment, and calls both eagerly and in a graph."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

INSTALLED = find_spec("tensorflow") is not None
ENV = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}


def start(inter: int = 2) -> Any:
    """TensorFlow, with few threads: ranks share two cores."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.get_logger().setLevel("ERROR")  # tests trace many functions, which is warned of
    return tf


def both(function: Callable[..., Any], *args: Any) -> list[Any]:
    """The function's results as arrays, the same bits eagerly and in a graph."""
    import tensorflow as tf

    eager = [np.asarray(value) for value in tf.nest.flatten(function(*args))]
    graph = [np.asarray(value) for value in tf.nest.flatten(tf.function(function)(*args))]
    for one, other in zip(eager, graph, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    return graph


def close(actual: Any, expected: Any) -> None:
    """Equal up to a few roundings, in the dtype and shape of the expected value."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=1e-5)
