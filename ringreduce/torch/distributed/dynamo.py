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
    """Marks all code of the modules as not to be compiled. Does nothing on a torch without such a mark."""
    mark = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
    if mark is None:
        return
    for module in modules:
        for code in _codes(vars(module).values(), module.__name__):
            mark(code)


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
