"""ringreduce.keras.callbacks under Horovod's other name, with Horovod's order of arguments there."""

from __future__ import annotations

from typing import Any

from ringreduce.keras import callbacks
from ringreduce.keras.callbacks import *  # noqa: F403  # its __all__ is this one's

__all__ = callbacks.__all__


class BestModelCheckpoint(callbacks.BestModelCheckpoint):  # type: ignore[no-redef]
    """ringreduce.keras.callbacks.BestModelCheckpoint, with its arguments in another order."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: Any = None,
    ) -> None:
        super().__init__(monitor, verbose, mode, save_freq, filepath, save_weights_only)
