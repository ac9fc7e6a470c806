"""Where the time goes, in the logs of an epoch and in a logger while an epoch runs."""

from __future__ import annotations

from typing import Any

from ringreduce.basics import reported
from ringreduce.common.report_log import ReportLog
from ringreduce.job.report_interval import ReportInterval
from ringreduce.keras.active import keras
from ringreduce.keras.callbacks.metrics import OfThisRank

IN_LOGS = ("sampled_s", "waited_share", "late_share", "latest_rank", "latest_share")
"""Keras prints all logs in its progress bar: there the counters would be a screen of their own."""


class ReportCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Adds what report() says of an epoch's time to the epoch's logs, and writes all of it to a logger meanwhile.

    It comes before CSVLogger, TensorBoard and others that write logs in the list that fit() is given. The history and
    the progress bar have the figures too. In logs are sampled_s, waited_share, late_share, latest_rank and
    latest_share, by their names after the prefix, at the end of every epoch, from the first one on; the counters of
    stats() go to the target only.

    Args:
        every_s, prefix, rank: as of ReportLog; logs are added to on that rank only.
        target: as of ReportLog, None for none. Its steps are batches since the first fit() with this callback. What is
            left at the end of training is written then. A step is written once.

    Raises:
        InvalidArgumentError: as of ReportLog.
        NotInitializedError: in fit(), when there is no job.
    """

    def __init__(
        self, every_s: float = 30.0, prefix: str = "ringreduce/", rank: int | None = 0, target: Any = None
    ) -> None:
        super().__init__()
        self.prefix = prefix
        self.rank = rank
        self._log = ReportLog(_nowhere if target is None else target, every_s, prefix, rank)
        self._epoch = ReportInterval()
        self._steps = 0  # before this epoch
        self._batches = 0  # of this epoch
        self._has_written = False  # the last batch's step

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._epoch.begin(reported().context)
        if not self._steps + self._batches:
            self._log.step(0)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += self._batches
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._batches = batch + 1  # with steps_per_execution a call stands for several
        self._has_written = self._log.step(self._steps + self._batches)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        of = reported()
        if logs is None or self.rank not in (None, of.rank):
            return
        figures = self._epoch.figures(of)
        logs.update((self.prefix + name, OfThisRank(figures[name])) for name in IN_LOGS)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._has_written:
            self._has_written = self._log.write(self._steps + self._batches)


def _nowhere(figures: dict[str, float], step: int) -> None:
    """Nothing is written without a target, but the other arguments are checked."""
