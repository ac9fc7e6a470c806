"""Imports a framework for its package of ringreduce, or says what to install."""

from __future__ import annotations

from importlib import import_module


def need(module: str, package: str, install: str) -> None:
    """Imports a module, so that a package that cannot do without it says so first.

    Args:
        package: of ringreduce, such as "ringreduce.torch".
        install: what pip installs.

    Raises:
        ModuleNotFoundError: it, or what it needs itself, is missing.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        which = module if error.name == module else f"{module}, which needs {error.name}"
        text = f"{package} needs {which}; that is not installed: pip install {install}"
        raise ModuleNotFoundError(text, name=error.name) from error
