"""distributed(): a gradient transformation, in Optax's sense, that reduces gradients before it hands them on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from ringreduce.collectives.ops import Average
from ringreduce.common.arguments import check_compression
from ringreduce.errors import InvalidArgumentError
from ringreduce.jax.compression import Compression
from ringreduce.jax.primitives import branch, decision
from ringreduce.jax.reductions import grouped_allreduce
from ringreduce.job.process_sets import ProcessSet, global_process_set

KINDS = 64  # of arguments whose shapes are remembered


class GradientTransformation(NamedTuple):
    """Optax's pair of functions, which optax.chain() and whatever else expects one accept."""

    init: Callable[..., Any]
    update: Callable[..., Any]


class AccumulationState(NamedTuple):
    """State of distributed(tx, every=N) with N above 1; with 1 it is that of tx itself.

    Save it, and broadcast it, where `step` is 0: between two update steps `gradients` is the rank's own.
    """

    inner: Any
    """Of tx."""
    step: jax.Array
    """int32: calls of update() since the last update step, 0 to N - 1."""
    gradients: Any
    """Their sum, of this rank alone."""


def distributed(
    tx: Any,
    *,
    every: int = 1,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> GradientTransformation:
    """tx on gradients that are all-reduced, as one operation, before it sees them.

    Give a transformation that may leave out updates, such as optax.apply_if_finite or optax.MultiSteps with
    should_skip_update_fn, as tx: there it sees reduced gradients. Around distributed() it would leave out the reduction
    on one rank alone, and gradients of different steps would be reduced together.

    Args:
        tx: an Optax transformation, or any object with its init() and update(). It comes after the reduction: clipping
            within it clips the reduced gradients.
        every: reduce and update in every N-th call only, with the mean of the N gradients. The calls between give
            updates of zeros, and communicate nothing. All ranks give the same number, and load states of the same step.
        op, prescale_factor, postscale_factor, process_set, compression: as in grouped_allreduce().

    Returns:
        A pair (init, update), to be used as tx is, inside jit or outside. update() hands extra arguments by name to tx
        as they are, with every=N those of the N-th call. Where tx decides by one, such as the `value` of
        optax.contrib.reduce_on_plateau() or optax.polyak_sgd(), reduce it first: value=hvd.allreduce(loss). Of a tx
        that is an optax.GradientTransformationExtraArgs the pair is one too, so that optax.chain() passes these
        arguments on.

    Raises:
        InvalidArgumentError: every is no whole number, or less than 1; or compression is no compressor.

    >>> tx = hvd.distributed(optax.adam(1e-3))
    """
    if not every >= 1 or every % 1 != 0:
        raise InvalidArgumentError(f"distributed(): every must be a whole number, 1 or more, not {every}")
    check_compression(compression)

    name = f"distributed(every={int(every)})"

    def reduced(gradients: Any) -> Any:
        return grouped_allreduce(
            gradients,
            name=None if every == 1 else name,  # a MismatchError where ranks have others
            op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            process_set=process_set,
            compression=compression,
        )

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return tx.update(reduced(gradients), state, params, **extra)  # type: ignore[no-any-return]

    with_extra: Any = getattr(sys.modules.get("optax"), "GradientTransformationExtraArgs", ())  # there, if tx is one
    made = cast(type[GradientTransformation], with_extra) if isinstance(tx, with_extra) else GradientTransformation
    if every == 1:
        return made(tx.init, update)

    shapes: dict[Any, Any] = {}  # of updates, by _kind(): asking tx traces it

    def init(params: Any) -> AccumulationState:
        zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
        return AccumulationState(tx.init(params), jnp.zeros((), jnp.int32), zeros)

    def accumulate(
        gradients: Any, state: AccumulationState, params: Any = None, **extra: Any
    ) -> tuple[Any, AccumulationState]:
        total = jax.tree_util.tree_map(jnp.add, state.gradients, gradients)
        _check_dtypes(state.gradients, total)
        zeros = jax.tree_util.tree_map(jnp.zeros_like, total)

        def finish() -> tuple[Any, AccumulationState]:
            mean = jax.tree_util.tree_map(lambda leaf: leaf / jnp.asarray(every, leaf.dtype), total)
            updates, inner = update(mean, state.inner, params, **extra)
            return updates, AccumulationState(inner, jnp.zeros((), jnp.int32), zeros)

        def go_on() -> tuple[Any, AccumulationState]:
            kind = _kind((total, state.inner, params, extra))
            if kind not in shapes:
                if len(shapes) >= KINDS:
                    shapes.clear()
                shapes[kind] = jax.eval_shape(finish)[0]
            updates = jax.tree_util.tree_map(jnp.zeros_like, shapes[kind])
            return updates, AccumulationState(state.inner, state.step + 1, total)

        is_last = decision(state.step == every - 1, name)
        return branch(is_last, finish, go_on)  # type: ignore[no-any-return]

    return made(init, accumulate)


def _check_dtypes(begun: Any, total: Any) -> None:
    """Raises InvalidArgumentError where gradients would change the dtype of the sum that init() has begun."""
    for leaf, added in zip(jax.tree_util.tree_leaves(begun), jax.tree_util.tree_leaves(total), strict=True):
        if leaf.dtype != added.dtype:
            raise InvalidArgumentError(
                f"distributed(every=N) adds up gradients in the dtype of the parameters, which is {leaf.dtype}; with "
                f"these gradients the sum would be {added.dtype}: cast them, or give init() parameters of that dtype"
            )


def _kind(tree: Any) -> Any:
    """What the shapes and dtypes of tx's updates depend on: the same for trees of which jit makes one program."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    parts = ("shape", "dtype", "weak_type")
    return structure, tuple((type(leaf), *(getattr(leaf, part, None) for part in parts)) for leaf in leaves)
