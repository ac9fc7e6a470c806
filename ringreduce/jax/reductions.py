"""All-reduce and reduce-scatter of JAX arrays, outside and inside of jit, grad and vmap (rules.py).

What the collectives here have in common: inside jit they are part of the program, in the order in which it is traced,
which must be the same on all ranks; outside they are done when they return. Raised while tracing, and outside of jit:
NotInitializedError and InvalidArgumentError; outside of jit also MismatchError, PeerLostError, TimeoutError and
ShutdownError. What goes wrong when compiled code runs is JAX's JaxRuntimeError with the same text, unless
failures.named_errors() gives it back its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ringreduce.collectives.ops import Adasum, Average, ReduceOp, Sum, check_op
from ringreduce.errors import InvalidArgumentError
from ringreduce.jax import rules as rules  # registers them
from ringreduce.jax.call import Call
from ringreduce.jax.compression import Compression
from ringreduce.jax.operands import array, mark_of, members, rows_of
from ringreduce.jax.primitives import bind
from ringreduce.job.process_sets import ProcessSet, global_process_set


def allreduce(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> jax.Array:
    """Reduces an array over all ranks; every rank gets the same bits.

    Args:
        tensor: any shape and supported dtype, the same on all ranks.
        name: identifies the operation; None (default) uses the order of calls, which JAX keeps.
        op: Average (default; truncates integers toward zero), Sum, Min, Max, Product, and for integers and bool
            LogicalAnd, LogicalOr, BitwiseAnd, BitwiseOr.
        prescale_factor, postscale_factor: multiply each input, and the result.
        process_set: the ranks that take part.
        compression: Compression.fp16 or .bf16 sends floating-point elements in that dtype.

    Returns:
        An array of the tensor's shape and dtype. Average and Sum have a gradient.

    >>> jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.ones(3))  # on two ranks
    Array([2., 2., 2.], dtype=float32)
    """
    factors = prescale_factor, postscale_factor
    return _reduced([tensor], name, op, factors, process_set, compression)[0]


def grouped_allreduce(
    tensors: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> Any:
    """allreduce() of all arrays of a list or any other pytree as one operation, which succeeds or fails as a whole.

    This is for gradients: one operation a step, whose order needs no thought. Within jit the results take the place of
    arrays that are not needed afterwards, so nothing is copied. dtypes may differ from array to array.

    Args:
        tensors: a pytree, the same on all ranks: a MismatchError where leaves have other paths. Nothing is communicated
            when it has no leaves.

    Returns:
        The same pytree of the reduced arrays.
    """
    leaves, tree = jax.tree_util.tree_flatten(tensors)
    factors = prescale_factor, postscale_factor
    reduced = _reduced(leaves, name, op, factors, process_set, compression, marked=tensors)
    return jax.tree_util.tree_unflatten(tree, reduced)


def _reduced(
    tensors: Sequence[Any],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    compression: Any,
    marked: Any = None,
) -> list[jax.Array]:
    """marked: the pytree that the tensors are the leaves of; None: a single array."""
    set_id = members(process_set, "allreduce")
    check_op(op)
    op = ReduceOp(op)
    if op == Adasum:
        raise InvalidArgumentError("allreduce: op Adasum is not available for JAX; use Average or Sum")
    pairs = [compression.compress(array(tensor, "allreduce")) for tensor in tensors]
    if not pairs:
        return []
    prescale, postscale = map(float, factors)
    call = Call("allreduce", set_id, name, int(op), prescale, postscale, in_place=True)
    operands = [tensor for tensor, _ in pairs]
    marks = [] if marked is None else [mark_of(marked, operands[0].dtype)]  # a dtype that op is known to take
    outputs = bind(call, *operands, *marks)[: len(operands)]
    return [compression.decompress(output, ctx) for output, (_, ctx) in zip(outputs, pairs, strict=True)]


def reducescatter(
    tensor: Any,
    *,
    name: str | None = None,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: Any = Compression.none,
) -> jax.Array:
    """Reduces an array over all ranks and gives each rank its part of the rows.

    Args:
        tensor: at least one dimension; shape and dtype the same on all ranks. Its rows are divided evenly in rank
            order, and the first `rows % size` ranks get one more.
        op: Average (default) or Sum.

    Returns:
        This rank's rows. Has a gradient.
    """
    set_id = members(process_set, "reducescatter")
    check_op(op)
    op = ReduceOp(op)
    if op not in (Average, Sum):
        raise InvalidArgumentError("Reducescatter currently only supports AVERAGE and SUM.")
    operand, ctx = compression.compress(array(tensor, "reducescatter"))
    rows = rows_of(operand, "Reducescatter")
    size, rank = process_set.group.size, process_set.group.rank
    own = rows // size + (rank < rows % size)
    prescale, postscale = float(prescale_factor), float(postscale_factor)
    call = Call("reducescatter", set_id, name, int(op), prescale, postscale, rows=own)
    return compression.decompress(bind(call, operand)[0], ctx)
