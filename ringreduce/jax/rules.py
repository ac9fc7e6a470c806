"""The collectives under jax.grad, jax.jvp, jax.linear_transpose and jax.vmap.

All but Min, Max and Product are linear, so the derivative is the collective itself, of the tangents. In reverse the
value that is differentiated is taken to be one for all ranks, as a loss is that ends in an all-reduce: each rank gets
the derivative with respect to its own input, and gradients are then reduced once, by the operation that reduced the
loss. For Sum that is the gradient itself (as in mpi4jax), for Average its average, for an all-gather the own rows of
the averaged gradient, for a broadcast the averaged gradient on the root and zeros elsewhere (as in Horovod).
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
from ringreduce.jax.primitives import KINDS, PRIMITIVES, bind

BATCHED = ("allreduce", "broadcast", "reduce")
"""Element by element, hence the same on an array with one dimension more."""


def transpose_of(call: Call, rows: int) -> Call:
    """The call whose function is the transpose; rows: the first dimension of this one's operand."""
    plain = Call(call.kind, call.process_set, in_place=True)
    if call.kind == "allreduce":
        return replace(call, name=None, in_place=True, is_transposed=call.op == Sum and not call.is_transposed)
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
    moving = [at for at, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
    if not moving:
        return outputs, zeros
    if call.kind in ("allreduce", "reducescatter") and call.op not in (Average, Sum):
        raise InvalidArgumentError(
            f"{call.kind} has a gradient for op Average and Sum, not for {ReduceOp(call.op).name}"
        )
    moved = bind(replace(call, name=None), *[tangents[at] for at in moving])
    for at, tangent in zip(moving, moved, strict=True):
        zeros[at] = tangent
    return outputs, zeros


def _transpose(cotangents: Sequence[Any], *operands: Any, call: Call) -> list[Any]:
    shapes = [operand.aval.shape for operand in operands]
    there = [at for at, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
    results: list[Any] = [_zero(operand.aval) for operand in operands]
    if not there:
        return results
    back = transpose_of(call, shapes[0][0] if shapes[0] else 1)
    outputs = bind(back, *[cotangents[at] for at in there])
    if call.kind == "reducescatter":
        scale = call.prescale * call.postscale
        outputs = [output if scale == 1.0 else output * jnp.asarray(scale, output.dtype) for output in outputs]
    for at, output in zip(there, outputs, strict=True):
        missing = shapes[at][0] - output.shape[0] if shapes[at] else 0  # rows that an alltoall sent to nobody
        padding = [(0, missing)] + [(0, 0)] * (output.ndim - 1)
        results[at] = jnp.pad(output, padding) if missing else output
    return results


def _batch(operands: Sequence[Any], axes: Sequence[int | None], *, call: Call) -> tuple[list[Any], list[int | None]]:
    if call.kind not in BATCHED:
        raise NotImplementedError(
            f"{call.kind} within jax.vmap would have to move rows of the mapped axis apart: call it outside of "
            "vmap, on the whole array"
        )
    return bind(call, *operands), list(axes)


for kind in KINDS:
    ad.primitive_jvps[PRIMITIVES[kind]] = _jvp
    ad.primitive_transposes[PRIMITIVES[kind]] = _transpose
    batching.primitive_batchers[PRIMITIVES[kind]] = _batch
