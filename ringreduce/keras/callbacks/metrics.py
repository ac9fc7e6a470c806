"""Metrics of all ranks at the end of an epoch."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from ringreduce.basics import rank
from ringreduce.collectives import ops
from ringreduce.common import same_start
from ringreduce.errors import MismatchError
from ringreduce.job.process_sets import global_process_set
from ringreduce.keras.active import keras


class OfThisRank(float):
    """A number in an epoch's logs that the other ranks do not have, or have another: no mean is taken of it."""

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)  # a history that is pickled has plain numbers


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Replaces the metrics of an epoch, val_ ones included, by their means over all ranks. Collective.

    It comes before callbacks that look at metrics in the list that fit() is given, such as ReduceLROnPlateau,
    EarlyStopping and TensorBoard, so that all ranks come to the same conclusion. The history has the means too. What
    ReportCallback adds stays each rank's own.

    Args:
        device: for Horovod's signature; without effect.

    Raises:
        MismatchError: in fit(), when ranks have different metrics, or one has more batches than another.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs or global_process_set.size() == 1:
            return
        names = sorted(
            name for name, value in logs.items() if np.ndim(value) == 0 and not isinstance(value, OfThisRank)
        )
        try:
            means = ops.allreduce(np.array([float(logs[name]) for name in names]))
        except MismatchError as error:
            raise MismatchError(
                f"{error}. MetricAverageCallback has come to the end of an epoch on rank {rank()}, where another rank "
                "has not: all ranks need equally many batches in an epoch (fit(steps_per_epoch=...))"
            ) from error
        # After the means, whose operation has no name, as those of gradients: a rank with more batches is told there.
        mark = zlib.crc32("\n".join(names).encode())
        if not same_start.are_on_all_ranks(global_process_set, "keras.metrics", [mark]):
            raise MismatchError(f"MetricAverageCallback: ranks have different metrics; rank {rank()} has {names}")
        logs.update(zip(names, means.tolist(), strict=True))
