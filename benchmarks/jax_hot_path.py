"""What a grouped all-reduce costs within a jitted function when there is next to nothing to move.

    .venv/bin/ringrun -np 2 .venv/bin/python benchmarks/jax_hot_path.py

The same turns as tensorflow_hot_path.py takes.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import hot_path
import jax
import jax.numpy as jnp

import ringreduce.jax as hvd


def main() -> None:
    """Measures, and prints on rank 0."""
    hvd.init()
    tensors = [jnp.full(hot_path.ELEMENTS, float(i + hvd.rank())) for i in range(hot_path.TENSORS)]

    @jax.jit
    def plain(values: list[Any]) -> list[Any]:
        return [value * 2 for value in values]

    @jax.jit
    def reduced(values: list[Any]) -> Any:
        return hvd.grouped_allreduce([value * 2 for value in values], op=hvd.Sum)

    others = sum(range(hvd.size()))
    for i, value in enumerate(reduced(tensors)):
        assert float(value[0]) == 2 * (i * hvd.size() + others), f"tensor {i}: {value}"

    def waited() -> Any:
        hvd.barrier()
        return jax.block_until_ready(plain(tensors))

    hot_path.report(
        "a jitted function",
        [lambda: jax.block_until_ready(plain(tensors)), waited, lambda: jax.block_until_ready(reduced(tensors))],
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
