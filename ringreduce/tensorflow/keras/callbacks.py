"""ringreduce.keras.callbacks under Horovod's other name."""

from __future__ import annotations

from ringreduce.keras import callbacks
from ringreduce.keras.callbacks import *  # noqa: F403  # its __all__ is this one's

__all__ = callbacks.__all__
