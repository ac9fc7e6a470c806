"""Calls of the host while a compiled step is in flight: they come after the step's collectives, on every rank."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from ranks import run_ranks

pytest.importorskip("jax", reason="JAX is not installed")

CALLS = {
    "ringreduce": ("join", "barrier", "broadcast_object", "allgather_object", "remove_process_set"),
    "ringreduce.jax": ("broadcast_object", "allgather_object", "remove_process_set"),
    "ringreduce.keras": ("join", "barrier", "broadcast_object", "allgather_object", "broadcast_variables"),
}
ARGUMENTS: dict[str, Any] = {"broadcast_object": (7,), "allgather_object": (7,), "broadcast_variables": ([], 0)}


def calls(package: str) -> None:
    """Rank 1 begins its step when rank 0, whose step has begun, waits for it: until then rank 0's is in flight."""
    from unittest import mock

    import jax
    import jax.numpy as jnp
    import numpy as np

    import ringreduce as rr
    import ringreduce.jax

    hvd: Any = importlib.import_module(package)
    big = jnp.ones((600, 600))  # XLA runs a program that it takes for short on the thread that calls it
    effects_barrier = jax.effects_barrier
    told = np.zeros(1)

    def waits() -> None:
        if rr.rank() == 0:
            rr.send(told, dest=1)
        effects_barrier()

    def step(x: Any, last: Any) -> Any:
        x = ringreduce.jax.allreduce(x + 0 * jnp.tanh(big @ big).sum(), op=rr.Sum)
        return ringreduce.jax.allreduce(x, op=rr.Sum, process_set=last) if last.included() else x

    compiled = jax.jit(step, static_argnums=1)
    with rr.init() as world, mock.patch.object(jax, "effects_barrier", waits):
        for name in CALLS[package]:
            first = rr.global_process_set
            if name == "remove_process_set":
                first = rr.add_process_set([0])
            if world.rank == 1:
                rr.recv(told, source=0)
            state = compiled(jnp.float32(world.rank + 1), first)
            getattr(hvd, name)(*ARGUMENTS.get(name, () if first is rr.global_process_set else (first,)))
            assert float(state) == (3 if name == "remove_process_set" else 6), name


@pytest.mark.parametrize("package", CALLS)
def test_calls_of_the_host_do_not_overtake_a_step_in_flight(package: str) -> None:
    if package == "ringreduce.keras":
        pytest.importorskip("keras")
    env = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", "RINGREDUCE_TIMEOUT": "60"}
    run_ranks(calls, 2, args=(package,), env=env)
