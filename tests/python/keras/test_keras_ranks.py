"""ringreduce.keras on two ranks, on each of Keras's backends: everything of a backend in one job, imports are slow."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from deadlines import HANG_S

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
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # takes a fifth off: almost all the time goes into compiling
    "CUDA_VISIBLE_DEVICES": "",
}


def all_checks(modules: list[str]) -> list[str]:
    """Runs every check of these modules, which stand beside this one; their names."""
    from keras_checks import start

    hvd = start()
    done = []
    for name in modules:
        for check in importlib.import_module(name).CHECKS:
            print("check", check.__name__, flush=True)
            check(hvd)
            done.append(check.__name__)
    hvd.shutdown()
    return done


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_two_ranks(backend: str, run_ranks: Callable[..., Any]) -> None:
    parts = ("optimizer", "training", "start", "report", "local_sgd")
    modules = [f"keras_{part}_checks" for part in parts]
    env = ENVIRONMENT | {"KERAS_BACKEND": backend}
    done = run_ranks(all_checks, 2, args=(modules,), env=env, timeout_s=2 * HANG_S)  # it is 33 tests in one
    assert done[0] == done[1]
    assert len(done[0]) >= 33
