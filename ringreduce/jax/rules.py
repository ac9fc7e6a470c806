"""The collectives under jax.grad, jax.jvp, jax.linear_transpose and jax.vmap.

All but Min, Max and Product are linear, so the derivative is the collective itself, of the tangents. In reverse the
value that is differentiated is taken to be one for all ranks, as a loss is that ends in an all-reduce: each rank gets
the derivative with respect to its own input, and gradients are then reduced once, by the operation that reduced the
loss. For Sum that is the gradient itself (as in mpi4jax), for Average its average, for an all-gather the own rows of
the averaged gradient, for a broadcast the averaged gradient on the root and zeros elsewhere (as in Horovod).

What JAX knows to be zero it does not hand on, and ranks may differ in that. So a group travels as a whole, with zeros,
and what has a name keeps it: else one array's derivative would be reduced with another's of the same shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from ringreduce.collectives.ops import Average, ReduceOp, Sum
from ringreduce.errors import InvalidArgumentError
from ringreduce.jax.call import Call
from ringreduce.jax.primitives import DECISION, KINDS, PRIMITIVES, bind

BATCHED = ("allreduce", "broadcast", "reduce")
"""Element by element, hence the same on an array with one dimension more."""
TANGENT = ".tangent"
"""Ends the name of an operation that reduces another one's tangents."""


def transpose_of(call: Call, rows: int) -> Call:
    """The call whose function is the transpose; rows: the first dimension of this one's operand."""
    name = None if call.name is None else f"{call.name.removesuffix(TANGENT)}.gradient"
    plain = Call(call.kind, call.process_set, name, in_place=True)
    if call.kind == "allreduce":
        return replace(call, name=name, in_place=True, is_transposed=call.op == Sum and not call.is_transposed)
    if call.kind == "broadcast":
        return replace(plain, kind="reduce", op=int(Average), root=call.root)
    if call.kind == "reduce":
        return replace(plain, kind="broadcast", root=call.root)
    if call.kind == "allgather":
        return replace(plain, kind="reducescatter", op=call.transpose_op, rows=rows, in_place=False)
    if call.kind == "reducescatter":
        return replace(plain, kind="allgather", transpose_op=call.op, rows=rows, in_place=False)
    return replace(
        plain,
        splits=call.received,
        received=call.splits,
        rows=sum(call.splits) if call.splits else rows,
        in_place=False,
    )


def _zero(like: Any) -> Any:
    """The symbolic zero tangent of an array, or of what describes one. Integers have tangents without content."""
    dtype = like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jax.dtypes.float0
    return ad.Zero(jax.core.ShapedArray(like.shape, dtype))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    outputs = bind(call, *primals)
    zeros: list[Any] = [_zero(output) for output in outputs]
    if all(type(tangent) is ad.Zero for tangent in tangents):
        return outputs, zeros
    if call.kind in ("allreduce", "reducescatter") and call.op not in (Average, Sum):
        raise InvalidArgumentError(
            f"{call.kind} has a gradient for op Average and Sum, not for {ReduceOp(call.op).name}"
        )
    moving = _floating(primals)
    name = None if call.name is None else call.name + TANGENT
    moved = bind(replace(call, name=name), *[ad.instantiate_zeros(tangents[at]) for at in moving])
    for at, tangent in zip(moving, moved, strict=True):
        zeros[at] = tangent
    return outputs, zeros


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call) -> list[Any]:
    avals = [x.aval if ad.is_undefined_primal(x) else x for x in operands]
    shapes = [aval.shape for aval in avals]
    there = [at for at, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    results: list[Any] = [_zero(aval) for aval in avals]
    if not there:
        return results
    back = transpose_of(call, shapes[0][0] if shapes[0] else 1)
    if not back.is_transposed:  # that one sends nothing
        there = _floating(avals)
    outputs = bind(back, *[ad.instantiate_zeros(cotangents[at]) for at in there])
    if call.kind == "reducescatter":
        scale = call.prescale * call.postscale
        outputs = [output if scale == 1.0 else output * jnp.asarray(scale, output.dtype) for output in outputs]
    for at, output in zip(there, outputs, strict=True):
        missing = shapes[at][0] - output.shape[0] if shapes[at] else 0  # rows that an alltoall sent to nobody
        padding = [(0, missing)] + [(0, 0)] * (output.ndim - 1)
        results[at] = jnp.pad(output, padding) if missing else output
    # An operand that is not to be differentiated takes no derivative: zeros that _jvp() has put in.
    return [result if ad.is_undefined_primal(x) else None for x, result in zip(operands, results, strict=True)]


def _floating(arrays: Sequence[Any]) -> list[int]:
    """Which have tangents with content."""
    return [at for at, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.floating)]


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, call: Call) -> tuple[list[Any], list[int | None]]:
    if call.kind not in BATCHED:
        raise NotImplementedError(
            f"{call.kind} within jax.vmap would have to move rows of the mapped axis apart: call it outside of "
            "vmap, on the whole array"
        )
    return bind(call, *operands), list(axes)


def _refuse_to_decide(operands: Sequence[Any], axes: Sequence[int | None], *, what: str) -> Any:
    raise NotImplementedError(
        f"{what} communicates in the steps that its counter says, and within jax.vmap each mapped element has its own "
        "counter: call it outside of vmap, on the stacked pytree, with one counter for all"
    )


def _jvp_of_decision(primals: Sequence[Any], tangents: Sequence[Any], *, what: str) -> tuple[Any, Any]:
    return DECISION.bind(*primals, what=what), _zero(primals[0])


for kind in KINDS:
    ad.primitive_jvps[PRIMITIVES[kind]] = _jvp
    ad.primitive_transposes[PRIMITIVES[kind]] = _transpose
    batching.primitive_batchers[PRIMITIVES[kind]] = _batch
ad.primitive_jvps[DECISION] = _jvp_of_decision
batching.primitive_batchers[DECISION] = _refuse_to_decide
