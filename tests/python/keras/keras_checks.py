"""What ranks do in test_keras_*.py, on whichever backend KERAS_BACKEND names: steps, and values to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import keras
import numpy as np

from ringreduce.collectives import ops

SHAPES = [(3, 2), (5,), ()]


def start() -> Any:
    """float64 throughout; the module under test, in a job."""
    keras.config.set_floatx("float64")
    import ringreduce.keras as hvd

    hvd.init()
    return hvd


def values(seed: int) -> list[np.ndarray]:
    """One array for each shape."""
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(shape)) for shape in SHAPES]


def gradients(step: int, rank: int) -> list[np.ndarray]:
    return values(1000 * (step + 1) + rank)


def mean_gradients(step: int, size: int) -> list[np.ndarray]:
    return [np.mean(parts, axis=0) for parts in zip(*(gradients(step, rank) for rank in range(size)), strict=True)]


def new_variables() -> list[Any]:
    return [keras.Variable(value, dtype="float64", name=f"v{i}") for i, value in enumerate(values(7))]


def tensor(value: Any) -> Any:
    return None if value is None else keras.ops.convert_to_tensor(value, dtype="float64")


def apply_steps(
    optimizer: Any,
    steps: Sequence[Sequence[Any]],
    variables: list[Any] | None = None,
    compiled: bool = False,
    after: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    """The variables after a step with each list of gradients; compiled: tf.function, jax.jit, nothing for torch."""
    variables = new_variables() if variables is None else variables
    optimizer.build(variables)
    backend = keras.backend.backend()
    if compiled and backend == "jax":
        import jax

        apply = jax.jit(optimizer.stateless_apply)
        state = [v.value for v in optimizer.variables]
        own = [v.value for v in variables]
        for step in steps:
            own, state = apply(state, [tensor(g) for g in step], own)
            jax.block_until_ready((own, state))
            after()
        for group, new in ((variables, own), (optimizer.variables, state)):
            for variable, value in zip(group, new, strict=True):
                variable.assign(value)
    elif compiled and backend == "tensorflow":
        import tensorflow as tf

        present = [i for i, gradient in enumerate(steps[0]) if gradient is not None]

        @tf.function
        def once(*given: Any) -> None:
            everything = [None] * len(variables)
            for i, gradient in zip(present, given, strict=True):
                everything[i] = gradient
            optimizer.apply_gradients(zip(everything, variables, strict=True))

        for step in steps:
            once(*(tensor(step[i]) for i in present))
            after()
    else:
        for step in steps:
            optimizer.apply([tensor(g) for g in step], variables)
            after()
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def operations(hvd: Any, work: Callable[..., Any]) -> tuple[Any, list[int]]:
    """What work(after=mark) returns, and how many operations the core was asked for up to each call of mark()."""
    counts = [hvd.stats()["operations"]]
    result = work(after=lambda: counts.append(hvd.stats()["operations"]))
    return result, np.diff(counts).tolist()


def compared(counts: Sequence[int], compiled: bool) -> list[int]:
    """These counts of a loop's steps, and if it is not compiled the small operations that compare its start."""
    if compiled and keras.backend.backend() != "torch":
        return list(counts)
    more = [1, 4]  # the first step only tells the others that it is the first
    return [count + (more[step] if step < len(more) else 0) for step, count in enumerate(counts)]


@contextmanager
def means_of_49_ranks() -> Iterator[None]:
    """ops.allreduce() multiplies the sum by a rounded 1/49, as the core does at 49 ranks, of which there are two here.

    Right where all ranks have the same values only.
    """

    def average(values: Any, *args: Any, **options: Any) -> Any:
        if options.get("op", ops.Average) != ops.Average:
            return plain(values, *args, **options)
        return np.asarray(values) * 49.0 * (1 / 49.0)

    plain = ops.allreduce
    with mock.patch.object(ops, "allreduce", average):
        yield


def assert_close(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray], rtol: float = 1e-12) -> None:
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10)
