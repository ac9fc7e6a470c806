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
from ringreduce.keras.active import keras, training


class OfThisRank(float):
    """A number in an epoch's logs that the other ranks do not have, or have another: no mean is taken of it."""

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)  # a history that is pickled has plain numbers


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Replaces the metrics of an epoch, val_ ones and arrays included, by their means over all ranks. Collective.

    It comes before callbacks that look at metrics in the list that fit() is given, such as ReduceLROnPlateau,
    EarlyStopping and TensorBoard, so that all ranks come to the same conclusion. The history has the means too. What
    ReportCallback adds stays each rank's own.

    Args:
        device: for Horovod's signature; without effect.

    Raises:
        MismatchError: in fit(), when ranks have different metrics, or metrics of different shapes, or one has more
            batches than another.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not logs or global_process_set.size() == 1:
            return
        found = {name: _numbers(logs[name]) for name in sorted(logs)}
        arrays = {name: array for name, array in found.items() if array is not None}
        try:
            means = ops.allreduce(np.concatenate([np.zeros(0), *(array.ravel() for array in arrays.values())]))
        except MismatchError as error:
            raise MismatchError(
                f"{error}. MetricAverageCallback has come to the end of an epoch on rank {rank()}, where another rank "
                "has not, or has metrics of other shapes: all ranks need equally many batches in an epoch "
                "(fit(steps_per_epoch=...)) and the same metrics"
            ) from error
        # After the means, whose operation has no name, as those of gradients: a rank with more batches is told there.
        shapes = {name: array.shape for name, array in arrays.items()}
        if not same_start.are_on_all_ranks(global_process_set, "keras.metrics", [zlib.crc32(repr(shapes).encode())]):
            told = [f"{name} of shape {shape}" if shape else name for name, shape in shapes.items()]
            raise MismatchError(f"MetricAverageCallback: ranks have different metrics; rank {rank()} has {told}")
        for name, array in arrays.items():
            mean, means = means[: array.size], means[array.size :]
            logs[name] = mean.reshape(array.shape) if array.ndim else float(mean[0])


def _numbers(value: Any) -> np.ndarray | None:
    """A metric in float64; None for what has no mean over the ranks."""
    if isinstance(value, OfThisRank):
        return None
    try:
        array = training.array_of(value) if hasattr(value, "numpy") else np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    is_real = array.dtype.kind in "biuf" or array.dtype.name == "bfloat16"
    return array.astype(np.float64) if is_real else None
