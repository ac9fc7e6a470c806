"""Horovod's small helpers that scripts and libraries import by name."""

from __future__ import annotations

import tensorflow as tf

from ringreduce.common.adasum import is_power_of_two
from ringreduce.common.arguments import choose as handle_average_backwards_compatibility
from ringreduce.tensorflow.variables import refs_to_vars, vars_to_refs

__all__ = [
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "refs_to_vars",
    "vars_to_refs",
]


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as op=Adasum needs it."""
    return is_power_of_two(num_rank)


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU. Whether ringreduce communicates its memory is cuda_built().

    Args:
        ext_base_name, verbose: for Horovod's signature; without effect.
    """
    return bool(tf.config.list_physical_devices("GPU"))


def _executing_eagerly() -> bool:
    """Whether operations run where they are called."""
    return bool(tf.executing_eagerly())
