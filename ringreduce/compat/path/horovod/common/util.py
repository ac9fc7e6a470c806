"""Horovod's helpers that scripts and libraries import by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from ringreduce import features
from ringreduce.common.adasum import is_power_of_two as num_rank_is_power_2
from ringreduce.common.arguments import choose

__all__ = [
    "ccl_built",
    "check_installed_version",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]

T = TypeVar("T")

FRAMEWORKS = ("torch", "tensorflow", "keras")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework ("torch", "tensorflow", "keras") is installed; ringreduce needs nothing else for it.

    Args:
        verbose: prints the answer.
    """
    there = ext_base_name in FRAMEWORKS and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"ringreduce for {ext_base_name}: {'available' if there else 'not available'}")
    return there


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether a framework ("torch", "tensorflow") is installed and sees a GPU.

    Args:
        verbose: prints the answer.
    """
    there = False
    if extension_available(ext_base_name, verbose):
        if ext_base_name == "torch":
            there = bool(importlib.import_module("torch").cuda.is_available())
        else:
            there = bool(importlib.import_module("tensorflow").config.list_physical_devices("GPU"))
    if verbose:
        print(f"GPU for {ext_base_name}: {'available' if there else 'not available'}")
    return there


def mpi_built(verbose: bool = False) -> bool:
    """hvd.mpi_built()."""
    return _told("MPI", features.mpi_built(), verbose)


def gloo_built(verbose: bool = False) -> bool:
    """hvd.gloo_built()."""
    return _told("Gloo", features.gloo_built(), verbose)


def nccl_built(verbose: bool = False) -> int:
    """hvd.nccl_built()."""
    return _told("NCCL", features.nccl_built(), verbose)


def ddl_built(verbose: bool = False) -> bool:
    """hvd.ddl_built()."""
    return _told("DDL", features.ddl_built(), verbose)


def ccl_built(verbose: bool = False) -> bool:
    """hvd.ccl_built()."""
    return _told("oneCCL", features.ccl_built(), verbose)


@contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Environment variables that hold within a with block; None leaves one as it is."""
    changed = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, Any], Any]:
    """The function of (op, average) that gives the operation which the two ways of saying it amount to.

    Args:
        reduce_ops: what has the operations, such as hvd.mpi_ops; ringreduce's are the same everywhere.
    """
    return choose


def split_list(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """A sequence in `parts` consecutive parts, whose lengths differ by one at most; the longer ones come first."""
    length, longer = divmod(len(items), parts)
    ends = [part * length + min(part, longer) for part in range(parts + 1)]
    return [items[ends[part] : ends[part + 1]] for part in range(parts)]


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Does nothing: ringreduce is compiled against no framework, so that no version can be the wrong one."""


def is_iterable(value: object) -> bool:
    """Whether iter() takes it."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Whether a version is `target` ("major.minor.patch") or newer. Raises ValueError for anything else."""
    from packaging.version import parse  # of the framework's own requirements; ringreduce needs NumPy only

    if not (isinstance(ver, str) and isinstance(target, str)) or target.count(".") != 2:
        raise ValueError(f"expected two version strings, the second as major.minor.patch; got {ver!r} and {target!r}")
    return parse(ver) >= parse(target)


def _told(what: str, built: T, verbose: bool) -> T:
    if verbose:
        print(f"ringreduce built with {what}: {bool(built)}")
    return built
