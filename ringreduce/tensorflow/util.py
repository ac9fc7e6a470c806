"""Horovod's small helpers that scripts and libraries import by name."""

from __future__ import annotations

import warnings

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError
from ringreduce.ops import Average, Sum
from ringreduce.tensorflow.variables import refs_to_vars, vars_to_refs

__all__ = [
    "check_num_rank_power_of_2",
    "gpu_available",
    "handle_average_backwards_compatibility",
    "refs_to_vars",
    "vars_to_refs",
]


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """The operation that the two ways of saying it amount to; Average where neither is given.

    Raises:
        InvalidArgumentError: both are given.
    """
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidArgumentError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn(
        "Parameter `average` has been replaced with `op` and will be removed", DeprecationWarning, stacklevel=3
    )
    return Average if average else Sum


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two, as op=Adasum needs it."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow sees a GPU. Whether ringreduce communicates its memory is cuda_built().

    Args:
        ext_base_name, verbose: for Horovod's signature; without effect.
    """
    return bool(tf.config.list_physical_devices("GPU"))


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())
