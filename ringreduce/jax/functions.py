"""Parameters from one rank to all."""

from __future__ import annotations

from typing import Any

import jax

from ringreduce.jax.data_movement import broadcast_all
from ringreduce.jax.operands import mark_of
from ringreduce.job.process_sets import ProcessSet, global_process_set


def broadcast_parameters(
    params: Any, root_rank: int = 0, *, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's pytree of arrays, on every rank: parameters, an optimizer's state, a PRNG key.

    Args:
        params: a pytree with the same structure, shapes and dtypes on all ranks, else a MismatchError; content matters
            on the root only.
        root_rank: global rank whose content it is.

    Returns:
        The same pytree; every leaf is a JAX array, numbers among the leaves too.
    """
    leaves, tree = jax.tree_util.tree_flatten(params)
    keys = [_is_key(leaf) for leaf in leaves]
    plain = [jax.random.key_data(leaf) if is_key else leaf for leaf, is_key in zip(leaves, keys, strict=True)]
    # First and alone: with other numbers of leaves the ranks' broadcasts would meet others' next operations.
    broadcast_all([mark_of(params, "uint8")], root_rank, None if name is None else f"{name}.paths", process_set)
    outputs = broadcast_all(plain, root_rank, name, process_set)
    results = [
        jax.random.wrap_key_data(output, impl=jax.random.key_impl(leaf)) if is_key else output
        for leaf, output, is_key in zip(leaves, outputs, keys, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, results)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
