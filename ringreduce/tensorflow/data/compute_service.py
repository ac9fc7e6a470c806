"""The reserved names of Horovod's wrapper around tf.data.service. Using them says what to use in its place."""

from __future__ import annotations

from typing import Any, NoReturn

from ringreduce.errors import UnavailableError

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]


class TfDataServiceConfig:
    """Horovod's description of a data service. Raises UnavailableError when instantiated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _unavailable("TfDataServiceConfig")

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> NoReturn:
        """Raises UnavailableError."""
        _unavailable("TfDataServiceConfig.read")


def tf_data_service(compute_config: Any, rank: int) -> NoReturn:
    """Horovod's context manager that registers a rank with the service. Raises UnavailableError."""
    _unavailable("tf_data_service")


def send_to_data_service(*args: Any, **kwargs: Any) -> NoReturn:
    """Horovod's transformation of a dataset into one that the service reads. Raises UnavailableError."""
    _unavailable("send_to_data_service")


def compute_worker_fn(compute_config: Any) -> NoReturn:
    """Horovod's main function of a worker of the service. Raises UnavailableError."""
    _unavailable("compute_worker_fn")


def _unavailable(name: str) -> NoReturn:
    raise UnavailableError(
        f"{name}: there is no data service here. Each rank may read its own part of the data, "
        "dataset.shard(hvd.size(), hvd.rank()), or all of them may use TensorFlow's own tf.data.experimental.service"
    )
