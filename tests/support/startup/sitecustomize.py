"""For Python processes of tests (PYTHONPATH, Makefile): frameworks are imported in less time.

No garbage is collected while a framework is imported. What an import makes lives as long as the process; the collector
looks through it at each collection, and at the end. And who compiles nothing does not import torch's compiler: torch's
optimizers import it only to keep it from tracing some of their methods, and what is not there traces nothing. CPU time
(Intel Xeon, Python 3.11, torch 2.13, TensorFlow 2.21):

    import torch, one optimizer, end     2.7 s -> 0.9 s (1.8 s with the compiler)
    import tensorflow, end               4.1 s -> 2.1 s

What exists once there is a job is never frozen: it is collected as usual, at the end too.
"""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False  # typing's own costs each process its import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

FIRST = {"torch", "tensorflow", "jax"}
LATER = {"torch._dynamo", "keras", "tf_keras"}
"""Often imported while objects of the test exist already."""
KEEPS_FROM_COMPILER = "torch._compile"
"""Whose _disable_dynamo(function) imports torch._dynamo when the function is called first."""


def is_at_the_beginning() -> bool:
    """Whether nothing exists that a test may want collected."""
    state = sys.modules.get("ringreduce.state")
    has_job = state is not None and getattr(state, "current", None) is not None
    return not has_job and not any(name in sys.modules for name in FIRST)


def disable_only_what_is_there(compile_module: Any) -> None:
    """The module's _disable_dynamo, for a function that is called as it is until someone has imported torch._dynamo."""
    import functools

    disable = compile_module._disable_dynamo

    def disable_later(fn: Any = None, recursive: bool = True) -> Any:
        if fn is None:
            return functools.partial(disable_later, recursive=recursive)
        disabled = disable(fn, recursive)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (disabled if "torch._dynamo" in sys.modules else fn)(*args, **kwargs)

        return call

    compile_module._disable_dynamo = disable_later


class QuickImports:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in FIRST | LATER and name != KEEPS_FROM_COMPILER:
            return None
        others = (finder for finder in sys.meta_path if finder is not QuickImports)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module
        freezes = name in FIRST and is_at_the_beginning()

        def execute_without_collection(module: ModuleType) -> None:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                execute(module)
                if name == KEEPS_FROM_COMPILER:
                    disable_only_what_is_there(module)
                if freezes:
                    gc.freeze()
            finally:
                if was_enabled:
                    gc.enable()

        spec.loader.exec_module = execute_without_collection  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, QuickImports)
