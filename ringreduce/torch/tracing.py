"""What torch.compile is told: whether it is at work, and which functions it is to leave alone.

Nothing here imports torch._dynamo, which takes a second or two: a program that compiles nothing does not pay for it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
"""True while torch.compile (or torch.export) traces the caller. The second spelling is torch 2.1's."""

frame_callback: Callable[[], Any] = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)
"""What torch.compile does with each function that is called now; None or False where it is not at work. Within a
compiled function it is, also where the graph was broken: what is called there would be compiled by itself."""

TRACEABLE = hasattr(torch.library, "register_autograd")
"""Whether this torch (>= 2.4) can have the collectives in its graphs. Older ones break the graph at each."""

ALIKE = "all ranks are to get the same bits of it"
ASYNC = "a handle is no value of a graph; the forms that wait are traced"
BLOCKS = "it exchanges what is not in tensors"
KERNEL = "it is what an operator does"
STEP = "it waits for operations that hooks have started"

UNCOMPILED = "ringreduce.torch.uncompiled"

untraced_functions: list[tuple[Callable[..., Any], str]] = []
"""The functions themselves, and why each is not traced."""


def untraced(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Marks a function that torch.compile breaks the graph at: it runs as it does without torch.compile.

    torch.compiler.disable(function) would do the same, at the price of importing torch._dynamo at once and of a
    microsecond in every call; so it is called when a compiled function first meets one of these functions.
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        index = len(untraced_functions)
        untraced_functions.append((function, reason))
        if UNCOMPILED in sys.modules:
            sys.modules[UNCOMPILED].add(function, reason)

        def entry(*args: P.args, **kwargs: P.kwargs) -> R:
            if is_compiling() or frame_callback():
                from ringreduce.torch import uncompiled

                result: R = uncompiled.functions[index](*args, **kwargs)
                return result
            return function(*args, **kwargs)

        # torch.compile keeps what it has made of a function with the function's code, and only so much of it.
        entry.__code__ = entry.__code__.replace(co_name=function.__name__)
        functools.update_wrapper(entry, function)
        return entry

    return mark


def traceable(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that has an operator for graphs; with a torch that cannot have it, the graph breaks there."""
    return (
        function if TRACEABLE else untraced(f"torch {torch.__version__}: operators in graphs need torch 2.4")(function)
    )
