"""Keeps torch.compile out of the backend.

A compiled DDP model calls the process group from C++ while Dynamo watches every Python frame that starts; Dynamo would
try to compile these, and fails on process groups. Marking code objects costs nothing and does not load Dynamo.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch


def skip(*modules: ModuleType) -> None:
    """Marks all code of the modules, and what it calls, as not to be compiled. A torch before 2.7 has no such mark."""
    native: Any = torch._C._dynamo.eval_frame
    if not hasattr(native, "set_code_exec_strategy"):
        return
    strategy = native._FrameExecStrategy(native._FrameAction.SKIP, native._FrameAction.SKIP)
    for module in modules:
        for code in _codes(vars(module).values(), module.__name__):
            native.set_code_exec_strategy(code, strategy)


def _codes(values: Any, module: str) -> Iterator[CodeType]:
    for value in values:
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, FunctionType) and value.__module__ == module:
            yield from _nested(value.__code__)
        elif isinstance(value, type) and value.__module__ == module:
            yield from _codes(vars(value).values(), module)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
