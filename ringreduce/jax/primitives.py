"""One JAX primitive for each collective: what it gives, how it is lowered, and what runs outside of jit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from ringreduce import _core
from ringreduce.errors import UnavailableError
from ringreduce.jax import callback, failures, versions
from ringreduce.jax.call import Call

KINDS = ("allreduce", "allgather", "broadcast", "reduce", "reducescatter", "alltoall", "barrier")


def bind(call: Call, *operands: Any) -> list[Any]:
    """The collective of these operands, now or in the program that is being traced."""
    _core.framework_note_threads()
    outputs: list[Any] = PRIMITIVES[call.kind].bind(*operands, call=call)
    return outputs


def decision(predicate: Any, what: str) -> jax.Array:
    """The predicate of a branch() that decides about a collective, unchanged.

    what: who decides, for the NotImplementedError that jax.vmap raises where mapped elements have predicates of their
    own. For these lax.cond would run both branches, and JAX refuses that for effects of its own only.
    """
    decided: jax.Array = DECISION.bind(jnp.asarray(predicate), what=what)
    return decided


def branch(predicate: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *operands: Any) -> Any:
    """lax.cond() of functions that are made in each call.

    Outside of a trace Python chooses, since lax.cond() would compile them again in each call, and keep the programs.
    The results are arrays of their own there too: the caller may donate them together, or keep what was passed in.
    """
    if isinstance(predicate, jax.core.Tracer):
        return jax.lax.cond(predicate, then, otherwise, *operands)
    chosen = then if predicate else otherwise
    return jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, copy=True), chosen(*operands))


def result_avals(call: Call, operands: Sequence[Any]) -> list[Any]:
    """The abstract outputs; barrier() has one, for the sake of having something to wait for."""
    if call.kind == "barrier":
        return [jax.core.ShapedArray((), jnp.dtype("uint8"))]
    return [jax.core.ShapedArray(call.output_shape(aval.shape), aval.dtype) for aval in operands]


def _abstract(*operands: Any, call: Call) -> tuple[list[Any], set[Any]]:
    return result_avals(call, operands), set() if call.is_transposed else {versions.effect, *versions.also}


def _lower(ctx: Any, *operands: Any, call: Call) -> Any:
    if call.is_transposed:
        return mlir.lower_fun(lambda *values: _scaled(call, values), multiple_results=True)(ctx, *operands)
    if versions.MECHANISM == "ffi":
        # Arrays without elements, such as mark_of() makes, may be constants, which XLA would have to copy.
        aliases = {at: at for at, aval in enumerate(ctx.avals_in) if aval.size} if call.in_place else {}
        return versions.custom_call(ctx, f"ringreduce_{call.kind}", operands, call.attributes(), aliases)
    called = lambda *values: callback.run(call, result_avals(call, values), values)  # noqa: E731
    return mlir.lower_fun(called, multiple_results=True)(ctx, *operands)


def _scaled(call: Call, values: Sequence[Any]) -> list[Any]:
    scale = call.prescale * call.postscale
    return [value if scale == 1.0 else value * jnp.asarray(scale, value.dtype) for value in values]


def _refuse(ctx: Any, *operands: Any, call: Call) -> Any:
    platforms = ", ".join(ctx.module_context.platforms)
    raise UnavailableError(
        f"{call.kind} within JAX works on arrays in host memory, and this program is compiled for {platforms}: run it "
        'with jax.default_device(jax.devices("cpu")[0]) or JAX_PLATFORMS=cpu'
    )


def _at_once(*operands: Any, call: Call) -> list[Any]:
    """Outside of jit: compiled like the rest, so that it keeps its place in the order, and waited for."""
    with failures.named_errors(), jax.disable_jit(False):
        return list(jax.block_until_ready(_compiled(replace(call, in_place=False))(*operands)))


def _compiled(call: Call) -> Any:
    """The program of a call. Programs hold about 1 MiB each: those of names that are used once drop each other, and
    none of those that are used again."""
    uses = _uses(call)
    if uses:
        return _used_again(call)
    uses.append(call)
    return _used_once(call)


@functools.lru_cache(maxsize=256)
def _used_once(call: Call) -> Any:
    return jax.jit(lambda *operands: bind(call, *operands))


@functools.lru_cache(maxsize=2048)
def _used_again(call: Call) -> Any:
    return _used_once(call)


@functools.lru_cache(maxsize=8192)
def _uses(call: Call) -> list[Call]:
    return []


def _primitive(kind: str) -> Primitive:
    primitive = Primitive(f"ringreduce_{kind}")
    primitive.multiple_results = True
    primitive.def_impl(_at_once)
    primitive.def_effectful_abstract_eval(_abstract)
    mlir.register_lowering(primitive, _refuse)
    mlir.register_lowering(primitive, _lower, platform="cpu")
    return primitive


PRIMITIVES = {kind: _primitive(kind) for kind in KINDS}

DECISION = Primitive("ringreduce_decision")
DECISION.def_impl(lambda predicate, what: predicate)
DECISION.def_abstract_eval(lambda predicate, what: predicate)
mlir.register_lowering(DECISION, lambda ctx, predicate, what: [predicate])
