"""What is used of the installed JAX that is no stable API: all of it is here, so that a new JAX is one file's work.

Collectives go to XLA as custom calls (jax.ffi) that are threaded on one ordered effect. Where the parts for that are
not there, MECHANISM is "io_callback": jax.experimental.io_callback(ordered=True) calls the core through Python, which
is slower and otherwise the same.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from ringreduce import _core

MECHANISM = "ffi"
"""How collectives leave compiled code: "ffi" or "io_callback"."""
FIRST = (0, 5, 0)
"""The first JAX whose custom calls can be ordered."""
effect: Any = None
"""The ordered effect of every collective."""
also: tuple[Any, ...] = ()
"""Its further effects."""
_lowering: Callable[..., Any]
_token: Any = None


def _connect() -> None:
    """Registers the handlers and the effect. Raises ImportError or AttributeError where this JAX is too different."""
    global effect, also, _lowering, _token
    from jax._src import core, effects

    if jax.__version_info__ < FIRST:
        raise ImportError(f"older than {'.'.join(map(str, FIRST))}: its custom calls take no tokens")
    ffi = importlib.import_module("jax.ffi")

    class CollectiveEffect(effects.Effect):  # type: ignore[misc]
        """Keeps the collectives of a program in the order in which it is written."""

        def __str__(self) -> str:
            return "ringreduce collective (one device a process)"

        __repr__ = __str__

    class UnorderedEffect(effects.Effect):  # type: ignore[misc]
        """Keeps JAX from calling what lower().compile() gives without tokens, as it would from the second call on."""

    effects.ordered_effects.add_type(CollectiveEffect)
    for allowed in (
        effects.lowerable_effects,
        effects.control_flow_allowed_effects,
        effects.custom_derivatives_allowed_effects,
        effects.remat_allowed_effects,
    ):
        allowed.add_type(CollectiveEffect)
        allowed.add_type(UnorderedEffect)
    _lowering, _token = ffi.ffi_lowering, core.abstract_token
    for name, handler in _core.xla_handlers().items():
        ffi.register_ffi_target(name, handler, platform="cpu")
    effect, also = CollectiveEffect(), (UnorderedEffect(),)


def custom_call(
    ctx: Any, target: str, operands: Sequence[Any], attributes: dict[str, Any], aliases: dict[int, int]
) -> list[Any]:
    """Within a lowering: the call of a handler, after all collectives before it and before all that follow.

    Args:
        aliases: outputs that may take an operand's place, as {operand: output}; XLA copies what is needed later.
    """
    avals_in, avals_out = [_token, *ctx.avals_in], [_token, *ctx.avals_out]
    rule = _lowering(
        target,
        operand_layouts=[_row_major(aval) for aval in avals_in],
        result_layouts=[_row_major(aval) for aval in avals_out],
        operand_output_aliases={0: 0} | {operand + 1: output + 1 for operand, output in aliases.items()},
        has_side_effect=True,
    )
    threaded = ctx.replace(avals_in=avals_in, avals_out=avals_out)
    token, *outputs = rule(threaded, ctx.tokens_in.get(effect), *operands, **attributes)
    ctx.set_tokens_out(mlir.TokenSet({effect: token}))
    return list(outputs)


def _row_major(aval: Any) -> tuple[int, ...]:
    return tuple(reversed(range(len(getattr(aval, "shape", ())))))


def is_traced(value: Any) -> bool:
    """Whether it stands for an array that is not there yet: within jit, grad, vmap or a loop."""
    return isinstance(value, jax.core.Tracer)


def is_tracing() -> bool:
    """Whether the code that runs now is being traced for a jit, also where it holds no traced value."""
    return is_traced(jax.lax.neg(np.int32(0)))


def _callback_effect() -> Any:
    from jax.experimental import io_callback

    (ordered,) = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
    return ordered


try:
    _connect()
except (ImportError, AttributeError) as error:
    MECHANISM = "io_callback"
    effect = _callback_effect()
    warnings.warn(
        f"JAX {jax.__version__} has no foreign function interface that ringreduce can use ({error}): collectives go "
        "through jax.experimental.io_callback(ordered=True), which is slower",
        RuntimeWarning,
        stacklevel=2,
    )
