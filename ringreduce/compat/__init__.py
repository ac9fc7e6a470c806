"""The name horovod: after install(), `import horovod.torch` finds ringreduce.torch, and so on for all of Horovod's API.

    from ringreduce import compat

    compat.install()
    import horovod.torch as hvd  # ringreduce.torch itself

Without a change of the script: `ringrun --as-horovod -np 2 python train.py`, or RINGREDUCE_AS_HOROVOD=1 in the
environment of an installed ringreduce. Modules that Horovod has and ringreduce has not, such as horovod.spark, are not
found, as any module that is not installed.

This module imports nothing of ringreduce, so that a launcher can ask it for the environment of ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from importlib.machinery import PathFinder

from ringreduce.compat.finder import FOLDER, Finder

VARIABLE = "RINGREDUCE_AS_HOROVOD"
"""1: the name horovod is ringreduce's; force: also where Horovod is installed; 0 or unset: it is not."""

__all__ = ["FOLDER", "VARIABLE", "install", "is_installed", "search_path", "switch_on"]


def install(force: bool = False) -> None:
    """Makes `import horovod` and its submodules find ringreduce, in this process from here on. Idempotent.

    The ranks that ringreduce.run() and horovod.run() start have the name too, and hide the package where this process
    was asked to, unless env={"RINGREDUCE_AS_HOROVOD": "0"} is given there.

    Args:
        force: also where a package named horovod is installed, which is hidden then.

    Raises:
        RuntimeError: a package named horovod has been imported, or, unless forced, is installed. It is no ImportError,
            because scripts that try `import horovod` and go on without it would train on one rank.
    """
    finder = _finder()
    if finder is not None:
        finder.forced = finder.forced or force
        return
    loaded = sys.modules.get("horovod")
    if loaded is not None and FOLDER not in (getattr(loaded, "__file__", None) or ""):
        raise RuntimeError(
            f"ringreduce.compat: horovod is already imported, from {getattr(loaded, '__file__', 'somewhere')}; call "
            "ringreduce.compat.install() before the first import of horovod"
        )
    installed = _installed_elsewhere()
    if installed is not None and not (force or os.environ.get(VARIABLE) == "force"):
        raise RuntimeError(
            f"ringreduce.compat: a package named horovod is installed at {installed}. Uninstall it (pip uninstall "
            f"horovod), or hide it: ringreduce.compat.install(force=True), or {VARIABLE}=force"
        )
    sys.meta_path.insert(0, Finder(force))


def is_installed() -> bool:
    """Whether the name horovod is ringreduce's in this process."""
    return _finder() is not None


def search_path() -> list[str]:
    """sys.path for a Python that this process starts, in which the name horovod is ringreduce's: FOLDER comes first."""
    return _with_folder(sys.path)


def switch_on(environ: MutableMapping[str, str]) -> None:
    """Switches the name on for a program and its children: sets RINGREDUCE_AS_HOROVOD and begins PYTHONPATH.

    Args:
        environ: the variables that the program gets; a value "force" stays, and is set where install() was forced.
    """
    finder = _finder()
    if finder is not None and finder.forced:
        environ[VARIABLE] = "force"
    elif not _switched_on(environ):
        environ[VARIABLE] = "1"
    entries = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    environ["PYTHONPATH"] = os.pathsep.join(_with_folder(entries))


def _with_folder(entries: Iterable[str]) -> list[str]:
    return [FOLDER, *(entry for entry in entries if entry != FOLDER)]


def _finder() -> Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)


def _switched_on(environ: Mapping[str, str]) -> bool:
    return environ.get(VARIABLE, "0") not in ("", "0")


def _installed_elsewhere() -> str | None:
    """Where `import horovod` would find another package than ours; None where it would not."""
    others = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != os.path.realpath(FOLDER)]
    found = PathFinder.find_spec("horovod", others)
    return None if found is None or found.origin is None else found.origin
