"""The untraced functions as compiled code calls them. Imported when torch.compile first meets one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ringreduce.torch.tracing import untraced_functions

functions: list[Callable[..., Any]] = []
"""In the order of untraced_functions."""

_TAKES_REASON = "reason" in inspect.signature(torch.compiler.disable).parameters  # torch >= 2.7 or so


def add(function: Callable[..., Any], reason: str) -> None:
    """Has torch.compile break the graph at the function, with the reason in its report where torch takes one."""
    options = {"reason": reason} if _TAKES_REASON else {}
    functions.append(torch.compiler.disable(function, **options))  # type: ignore[no-untyped-call]


for _function, _reason in untraced_functions:
    add(_function, _reason)
