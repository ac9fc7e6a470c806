"""Horovod's callbacks, for model.fit(), one for local SGD, and one that reports where the time goes."""

from __future__ import annotations

from ringreduce.keras.callbacks.broadcast import BroadcastGlobalVariablesCallback
from ringreduce.keras.callbacks.checkpoint import BestModelCheckpoint
from ringreduce.keras.callbacks.local_sgd import LocalSGDCallback
from ringreduce.keras.callbacks.metrics import MetricAverageCallback
from ringreduce.keras.callbacks.report import ReportCallback
from ringreduce.keras.callbacks.schedule import LearningRateScheduleCallback, LearningRateWarmupCallback

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "LocalSGDCallback",
    "MetricAverageCallback",
    "ReportCallback",
]
