"""A callback for Lightning's Trainer; this module alone needs Lightning, and nothing else here imports it.

    from ringreduce.torch.lightning import ReportCallback

    trainer = lightning.Trainer(callbacks=[ReportCallback()], ...)

Lightning is the package lightning (lightning.pytorch) or pytorch_lightning: the one that the program has imported, else
the one that is installed, in this order.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch.distributed as dist

from ringreduce.common.needs import need
from ringreduce.common.report_log import ReportLog

__all__ = ["ReportCallback"]


def _lightning() -> Any:
    """lightning.pytorch or pytorch_lightning. Raises ModuleNotFoundError where neither is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        if sys.modules.get(name) is not None:
            return sys.modules[name]
    try:
        need("lightning", __name__, "lightning")
    except ModuleNotFoundError as error:
        try:
            return import_module("pytorch_lightning")
        except ModuleNotFoundError:
            raise error from None
    return import_module("lightning.pytorch")


class ReportCallback(_lightning().Callback):  # type: ignore[misc]
    """Writes the figures of ringreduce.report() to every logger of the Trainer while it trains.

    They are those of torch's default process group where its backend is "ringreduce", as DDPStrategy makes it, else of
    the job of ringreduce.init(). Lightning's loggers write on rank 0 only: they are rank 0's figures. The step is
    trainer.global_step. What is left at the end of training is written then.

    Args:
        every_s, prefix: as of ringreduce.ReportLog.

    Raises:
        InvalidArgumentError: an argument has a bad value.
        NotInitializedError: in fit(), when there is neither such a group nor a job.
    """

    def __init__(self, every_s: float = 30.0, prefix: str = "ringreduce/") -> None:
        super().__init__()
        self._arguments = every_s, prefix
        self._log = ReportLog(_nowhere, every_s, prefix)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning: begins."""
        group: Any = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None

        def write(figures: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=step)

        self._log = ReportLog(write, *self._arguments, group=group if hasattr(group, "reported") else None)
        self._log.step(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Called by Lightning: writes, if it is time."""
        self._log.step(trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Called by Lightning: writes what is left."""
        self._log.write(trainer.global_step)


def _nowhere(figures: dict[str, float], step: int) -> None:
    """Before training: nothing is written, but the arguments are checked."""
