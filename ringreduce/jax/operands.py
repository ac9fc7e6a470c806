"""What may be communicated, by whom: arrays and process sets as calls take them, checked before anything is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ringreduce.collectives.buffers import CODES
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet


def array(value: Any, kind: str) -> jax.Array:
    """The operand as a JAX array, or the traced value itself. Raises InvalidArgumentError for other dtypes."""
    operand = jnp.asarray(value)
    name = operand.dtype.name
    if name not in CODES:
        advice = ""
        if jnp.issubdtype(operand.dtype, jnp.complexfloating):
            advice = " (communicate real and imaginary part as two arrays)"
        raise InvalidArgumentError(
            f"{kind}: Tensor type {name} is not supported{advice}; supported: {', '.join(CODES)}"
        )
    return operand


def rows_of(operand: jax.Array, kind: str) -> int:
    """The first dimension. Raises InvalidArgumentError when there is none."""
    if operand.ndim == 0:
        raise InvalidArgumentError(f"{kind} does not support scalar inputs: it concatenates or splits rows")
    rows: int = operand.shape[0]
    return rows


def members(process_set: ProcessSet, kind: str) -> int:
    """The id of the set.

    Raises:
        NotInitializedError: before init().
        InvalidArgumentError: it is not registered, or this rank is no member.
    """
    getattr(process_set.group, f"{kind}_async")
    assert process_set.process_set_id is not None
    return process_set.process_set_id
