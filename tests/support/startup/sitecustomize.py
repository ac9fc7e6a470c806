"""For Python processes of tests (PYTHONPATH, Makefile): no garbage collection while a framework is imported.

What an import makes lives as long as the process; the collector looks through it at each collection, and at the end.
Without that, these take less of the processor (Intel Xeon, Python 3.11, torch 2.13, TensorFlow 2.21):

    import torch, one optimizer, end     2.7 s -> 0.9 s (1.8 s with torch._dynamo, see uncompiled.py)
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

FIRST = {"torch", "tensorflow", "jax"}
COMPILER = "torch._dynamo"
LATER = {COMPILER, "keras", "tf_keras"}
"""Often imported while objects of the test exist already."""


def is_at_the_beginning() -> bool:
    """Whether nothing exists that a test may want collected."""
    state = sys.modules.get("ringreduce.state")
    has_job = state is not None and getattr(state, "current", None) is not None
    return not has_job and not any(name in sys.modules for name in FIRST)


class QuickImports:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in FIRST | LATER:
            if name.startswith(COMPILER + "."):
                from uncompiled import below

                return below(name)
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
                if freezes:
                    gc.freeze()
            finally:
                if was_enabled:
                    gc.enable()

        spec.loader.exec_module = execute_without_collection  # type: ignore[method-assign]
        if name == COMPILER:
            from uncompiled import Later

            spec.loader = Later(spec.loader)
        return spec


sys.meta_path.insert(0, QuickImports)
