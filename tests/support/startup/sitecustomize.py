"""For Python processes of tests (PYTHONPATH, Makefile): no garbage collection while a framework is imported.

What an import makes lives as long as the process; the collector looks through it at each collection, and at the end.
Without that, these take less of the processor (Intel Xeon, Python 3.11, torch 2.13, TensorFlow 2.21):

    import torch, one optimizer (which imports torch._dynamo), end     2.7 s -> 1.8 s
    import tensorflow, end                                             4.1 s -> 2.1 s

What is made later is collected as usual, at the end too.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FIRST = {"torch", "tensorflow", "jax", "keras", "tf_keras"}
# Imported while objects of the test's exist already. They must not be frozen: the collector would never end them.
LATER = {"torch._dynamo"}


class QuickImports:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in FIRST | LATER:
            return None
        others = (finder for finder in sys.meta_path if finder is not QuickImports)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_without_collection(module: ModuleType) -> None:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                execute(module)
            finally:
                if was_enabled:
                    if name in FIRST:
                        gc.freeze()
                    gc.enable()

        spec.loader.exec_module = execute_without_collection  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, QuickImports)
