"""DistributedOptimizer of Keras, on each backend, beside the plain optimizer that is given the mean."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

pytest.importorskip("keras")

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is missing"))
    for name in ("torch", "tensorflow", "jax")
]
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "JAX_ENABLE_X64": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


def environment(backend: str) -> dict[str, str]:
    return ENVIRONMENT | {"KERAS_BACKEND": backend}


def same_steps() -> int:
    """Each way to train, compiled and not; the number of those tried."""
    import keras
    from keras.optimizers import SGD, Adam, RMSprop
    from keras_checks import apply_steps, assert_close, gradients, mean_gradients, operations, start

    hvd = start()
    rank, size = hvd.rank(), hvd.size()
    mine = [gradients(step, rank) for step in range(4)]
    mean = [mean_gradients(step, size) for step in range(4)]
    total = [[size * gradient for gradient in step] for step in mean]
    ways: list[tuple[Callable[[], Any], dict[str, Any], Any, list[int]]] = [
        (lambda: SGD(0.1, momentum=0.9, nesterov=True), {}, mean, [1, 1, 1, 1]),
        (lambda: SGD(0.1), {"op": hvd.Sum, "name": "steps"}, total, [1, 1, 1, 1]),
        (lambda: Adam(0.1, clipnorm=0.3), {"groups": 2}, mean, [2, 2, 2, 2]),
        (lambda: RMSprop(0.1, global_clipnorm=0.3), {"gradient_predivide_factor": 4.0}, mean, [1, 1, 1, 1]),
        (lambda: SGD(0.1, clipvalue=0.2, loss_scale_factor=8.0), {"groups": 99}, mean, [3, 3, 3, 3]),
        (lambda: SGD(0.1, global_clipnorm=0.5, gradient_accumulation_steps=2), {}, mean, [0, 1, 0, 1]),
        (lambda: Adam(0.1, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3), {}, mean, [1, 1, 1, 1]),
    ]
    for compiled in (False, True):
        for number, (make, options, equivalent, counts) in enumerate(ways):
            optimizer = hvd.DistributedOptimizer(make(), **options)
            ours, counted = operations(hvd, partial(apply_steps, optimizer, mine, compiled=compiled))
            assert_close(ours, apply_steps(make(), equivalent))
            assert counted == counts, (number, compiled, counted)
            assert int(keras.ops.convert_to_numpy(optimizer._iterations)) == 4
        for average in (False, True):
            optimizer = hvd.DistributedOptimizer(
                SGD(0.1, clipnorm=0.7), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            summed = SGD(0.1, clipnorm=0.7)
            both = [[(a + b) / (1 + average) for a, b in zip(*mean[i : i + 2], strict=True)] for i in (0, 2)]
            assert_close(apply_steps(optimizer, mine, None, compiled), apply_steps(summed, both))
            assert optimizer.get_config()["gradient_accumulation_steps"] == 2
    return len(ways)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_those_of_the_plain_optimizer(backend: str, run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(same_steps, 2, env=environment(backend), timeout_s=120) == [7, 7]
