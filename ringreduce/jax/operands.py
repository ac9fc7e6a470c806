"""What may be communicated, by whom: arrays and process sets as calls take them, checked before anything is traced.

Also the mark that shows the other ranks which pytree a rank's arrays are from.
"""

from __future__ import annotations

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ringreduce.collectives.buffers import CODES
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, group_of


def array(value: Any, kind: str, content_matters: bool = True) -> jax.Array:
    """The operand as a JAX array, or the traced value itself.

    Args:
        content_matters: False for what only the shape and the dtype are used of.

    Raises:
        InvalidArgumentError: the dtype is another one, or JAX, set to 32 bits, would drop bits of NumPy's integers.
    """
    operand = jnp.asarray(value)
    is_narrower = content_matters and isinstance(value, np.ndarray | np.generic) and value.dtype != operand.dtype
    if is_narrower and np.issubdtype(value.dtype, np.integer) and (value.astype(operand.dtype) != value).any():
        raise InvalidArgumentError(
            f"{kind}: numbers of {value.dtype} do not fit into the {operand.dtype} that JAX makes of them: set "
            "jax_enable_x64"
        )
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
        InvalidArgumentError: it is no process set or not registered, or this rank is no member.
    """
    getattr(group_of(process_set), f"{kind}_async")
    assert process_set.process_set_id is not None
    return process_set.process_set_id


def mark_of(tree: Any, dtype: Any) -> jax.Array:
    """An array without elements, whose shape differs between pytrees whose leaves have other paths.

    Leaves that are None do not travel, and those behind them move up: of equal shapes, one leaf would be reduced with
    another where ranks have them at other places. Beside the leaves this array makes that a MismatchError. It has
    paths only, since what else is in a pytree, such as functions, has no text that is the same on all ranks.
    """
    paths = [[_text(entry) for entry in path] for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return jnp.zeros((0, zlib.crc32(repr(paths).encode()) & 0x7FFFFFFF), dtype)


def _text(entry: Any) -> str:
    """Of an entry of a path: the same on all ranks, which texts of sets and of objects with an address are not."""
    of_jax = (jax.tree_util.GetAttrKey, jax.tree_util.SequenceKey, jax.tree_util.FlattenedIndexKey)
    if isinstance(entry, jax.tree_util.DictKey):
        return repr(entry.key) if _has_one_text(entry.key) else type(entry.key).__name__
    return str(entry) if isinstance(entry, of_jax) else type(entry).__name__


def _has_one_text(key: Any) -> bool:
    return isinstance(key, (str, int)) or (isinstance(key, tuple) and all(_has_one_text(part) for part in key))
