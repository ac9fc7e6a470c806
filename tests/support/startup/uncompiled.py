"""torch._dynamo, executed when something of it is needed: 0.75 s of CPU time less in a script that compiles nothing.

An optimizer imports it, for disable() and graph_break(). Both speak to a compiler that traces their caller; while
torch._dynamo has not been executed, there is none. Whatever else is asked of the module, or of one below it, executes
the module first.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
_lock = threading.RLock()


class Waiting(ModuleType):
    """The module until it is executed, which takes this class away from it."""

    is_being_executed = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not execute(self):  # what belongs to every module is there, or missing for good
            raise AttributeError(f"module {NAME!r} has no attribute {name!r} yet")
        return getattr(self, name)

    @staticmethod
    def graph_break(*_args: object, **_options: object) -> None:
        """Nothing is traced."""

    @staticmethod
    def disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
        """function; once there is a compiler, the function that it does not trace."""
        module = sys.modules[NAME]
        if options != {"wrapping": False}:  # not as torch itself calls it
            execute(module)
            return module.disable(function, recursive, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(module, Waiting):
                return function(*args, **kwargs)
            if not made:
                made.append(module.disable(function, recursive, **options))
            return made[0](*args, **kwargs)

        made: list[Any] = []
        return call


def execute(module: ModuleType) -> bool:
    """Executes torch._dynamo. False while that is under way."""
    with _lock:
        if not isinstance(module, Waiting):
            return True
        if module.is_being_executed:
            return False
        module.is_being_executed = True
        try:
            module.__spec__.loader.execute(module)  # type: ignore[union-attr]
        finally:
            del module.is_being_executed
        module.__class__ = ModuleType
        return True


class Later(importlib.abc.Loader):
    """A loader that leaves the module waiting."""

    def __init__(self, loader: Any) -> None:
        self.execute = loader.exec_module
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Waiting(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class AsItIs(importlib.abc.Loader):
    """Of a module that the execution of torch._dynamo has loaded, while it was looked for."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__
        self.spec = importlib.machinery.ModuleSpec(module.__name__, self)
        vars(module)["__spec__"] = self.spec  # what importlib goes by; torch's modules of settings refuse setattr()

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__spec__"] = self._spec


def below(name: str) -> importlib.machinery.ModuleSpec | None:
    """Of a module below torch._dynamo: None where it is to be loaded as usual.

    So it is while another thread executes torch._dynamo, which may need this module, whose lock this thread holds.
    """
    waiting = sys.modules[NAME]
    if not isinstance(waiting, Waiting) or not _lock.acquire(blocking=False):
        return None
    try:
        return AsItIs(sys.modules[name]).spec if execute(waiting) and name in sys.modules else None
    finally:
        _lock.release()
