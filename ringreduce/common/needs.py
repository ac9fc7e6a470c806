"""Imports a framework for its package of ringreduce, or says what to install."""

from __future__ import annotations

import re
from importlib import import_module

MINIMA = {
    "numpy": "1.23",
    "torch": "2.1",
    "tensorflow": "2.16",
    "keras": "3",
    "tf_keras": "2.16",
    "jax": "0.4.31",
}
"""Module: the oldest version that ringreduce works with, as pyproject.toml has it."""


def is_too_old(module: str, version: str) -> bool:
    """Whether a version is older than the oldest that works; one that cannot be read is not.

    >>> is_too_old("torch", "2.0.1+cu118"), is_too_old("torch", "2.1.0a0+nv"), is_too_old("torch", "unknown")
    (True, False, False)
    """
    numbers = _numbers(version)
    return bool(numbers) and numbers < _numbers(MINIMA.get(module, ""))


def need(module: str, package: str, install: str) -> None:
    """Imports a module, so that a package that cannot do without it says so first.

    Args:
        package: of ringreduce, such as "ringreduce.torch".
        install: what pip installs.

    Raises:
        ModuleNotFoundError: it, or what it needs itself, is missing.
        ImportError: it is too old.
    """
    try:
        imported = import_module(module)
    except ModuleNotFoundError as error:
        which = module if error.name == module else f"{module}, which needs {error.name}"
        text = f"{package} needs {which}; that is not installed: pip install {install}"
        raise ModuleNotFoundError(text, name=error.name) from error
    version = str(getattr(imported, "__version__", ""))
    if is_too_old(module, version):
        text = f"{package} needs {module} {MINIMA[module]} or newer; {version} is installed: pip install -U {install}"
        raise ImportError(text, name=module)


def _numbers(version: str) -> list[int]:
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []
