"""The import hook behind the name horovod.

`horovod`, horovod.common and horovod.runner are small packages of their own, in the folder path/. The others are
aliases: horovod.torch is the module ringreduce.torch itself, so that classes, errors and state are the same under both
names.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")
"""What is put on sys.path, or on PYTHONPATH, so that a package named horovod is found."""

ALIASES = {
    "horovod.torch": "ringreduce.torch",
    "horovod.tensorflow": "ringreduce.tensorflow",
    "horovod.keras": "ringreduce.keras",
    "horovod.common.basics": "ringreduce.common.basics",
    "horovod.common.exceptions": "ringreduce.common.exceptions",
    "horovod.common.process_sets": "ringreduce.job.process_sets",
}
"""Modules that are ringreduce's own, with all their submodules."""


class Finder(MetaPathFinder):
    """Finds horovod and what is below it; it is the first of sys.meta_path.

    Args:
        forced: whether it is to hide a package named horovod that is installed.
    """

    def __init__(self, forced: bool) -> None:
        self.forced = forced

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "horovod":
            folder = os.path.join(FOLDER, "horovod")
            return importlib.util.spec_from_file_location(
                fullname, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
            )
        ours = _ours(fullname)
        found = None if ours is None else importlib.util.find_spec(ours)
        if ours is None or found is None:
            return None
        return ModuleSpec(fullname, _Alias(ours), is_package=found.submodule_search_locations is not None)


class _Alias(Loader):
    """Gives a module of ours a second name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's there


def _ours(fullname: str) -> str | None:
    """The name that a module of Horovod's has here; None where that is not an alias."""
    for theirs, ours in ALIASES.items():
        if fullname == theirs or fullname.startswith(theirs + "."):
            return ours + fullname[len(theirs) :]
    return None
