"""Tapes, optimizers and the arguments of reductions of ringreduce.tensorflow: all in one job, imports are slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensorflow")

import tensorflow_optimizer_checks
import tensorflow_reduce_checks
import tensorflow_start_checks
import tensorflow_tape_checks
from tensorflow_checks import ENV, names, run

CHECKS = [
    *tensorflow_tape_checks.CHECKS,
    *tensorflow_reduce_checks.CHECKS,
    *tensorflow_optimizer_checks.CHECKS,
    *tensorflow_start_checks.CHECKS,
]


def run_checks() -> list[str]:
    return run(CHECKS)


def test_gradients_on_three_ranks(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(run_checks, 3, env=ENV) == [names(CHECKS)] * 3
