"""What checks of ringreduce.tensorflow share that run on ranks, several modules of them in one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import ringreduce.tensorflow as hvd

ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "RINGREDUCE_TIMEOUT": "60",
}
# The dense and the sparse gradients are two operations: neither may hold the thread that runs the other.
ONE_THREAD = tf.compat.v1.ConfigProto(
    inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
)
BASE = np.arange(1.0, 7.0).reshape(2, 3)

Check = Callable[[int], None]
"""Called on all ranks of a job with the rank."""


def ranks_mean(of: Callable[[int], Any], ranks: Any = range(3)) -> Any:
    return sum(of(rank) for rank in ranks) / len(ranks)


def near(ours: Any, expected: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=rtol, atol=rtol)


def run(checks: Sequence[Check]) -> list[str]:
    """Runs checks within a job of their own; their names."""
    with hvd.init() as world:
        for check in checks:
            print(check.__name__, flush=True)
            check(world.rank)
    return names(checks)


def names(checks: Sequence[Check]) -> list[str]:
    return [check.__name__ for check in checks]
