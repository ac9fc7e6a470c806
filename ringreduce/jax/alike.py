"""Whether the ranks that average are in the same step, and how many they are: numbers that travel with what they send.

Inside jit a step is known when the program runs only, so that no name and no shape can tell it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ringreduce.jax.call import Call
from ringreduce.jax.operands import members
from ringreduce.jax.primitives import bind, branch, decision
from ringreduce.job.process_sets import ProcessSet

BITS = 31  # of a step, an int32 that is not negative


def presence_and_step(step: Any) -> jax.Array:
    """What a rank sends beside the arrays of an Average: a one, the bits of its step, and what is missing to ones."""
    bits = (jnp.asarray(step, jnp.int32) >> jnp.arange(BITS, dtype=jnp.int32)) & 1
    return jnp.concatenate([jnp.ones(1, bits.dtype), bits, 1 - bits]).astype(float)


def are_in_one_step(mean: Any) -> jax.Array:
    """Whether all ranks have sent the same step; mean: the Average of what they have sent, or what is there of it.

    Where ranks differ in a bit, neither its mean nor that of what is missing to one is zero, and where they do not,
    one of them is. That is exact, while the mean of equal numbers may differ from them, as with 49 ranks. Ranks that
    have joined add zeros, and change nothing.
    """
    return (jnp.minimum(mean[1 : 1 + BITS], mean[1 + BITS :]) == 0).all()


def check(mean: jax.Array, name: str, process_set: ProcessSet) -> None:
    """Fails, on all ranks alike, where they are not in the same step: MismatchError.

    An error out of compiled code is that of a collective. So this is one whose operands have other shapes on all ranks.
    """
    call = Call("allreduce", members(process_set, "allreduce"), f"{name}: ranks are in different steps")

    def refuse() -> tuple[()]:
        bind(call, jnp.zeros((0, process_set.group.rank + 1)))
        return ()

    branch(decision(are_in_one_step(mean), name), lambda: (), refuse)


def of_present(mean: jax.Array, sent: jax.Array) -> jax.Array:
    """The mean over the ranks that take part, from the Average, to which ranks that have joined add zeros.

    sent: the Average of the ranks' presence_and_step(). Where nobody has joined the mean stays as it is, bit for bit.
    """
    wide = jnp.promote_types(mean.dtype, jnp.float32)
    scaled = (mean.astype(wide) / sent[0].astype(wide)).astype(mean.dtype)
    # The mean of ones may be off by a rounding, which is less than what one rank of a million makes.
    return jnp.where(sent[0] > 1 - 1e-6, mean, scaled)
