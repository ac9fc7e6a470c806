"""Ranges of our operations in torch's profiler: one for each call, one for each wait, by the operation's name.

    ringreduce.allreduce loss         the call; if it is one that waits, until the result is there
    ringreduce.wait allreduce loss    synchronize(), or what else waits for an operation that was started

torch.profiler.profile takes what record_function() marks, and emit_nvtx() and emit_itt() make ranges of NVTX and ITT of
it. They are off most of the time: profiled() then takes 20 ns a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import torch.autograd.profiler
from torch.autograd.profiler import record_function

from ringreduce._core import Group
from ringreduce.torch.tracing import is_compiling

P = ParamSpec("P")
R = TypeVar("R")

_FLAG = "_is_profiler_enabled"  # what torch asks itself; all of its profilers set it, for all threads
# A torch that has no such flag gets no ranges.
_profiler: Any = torch.autograd.profiler if hasattr(torch.autograd.profiler, _FLAG) else SimpleNamespace(**{_FLAG: 0})

NAME_AT = {
    "allreduce": 5,
    "allreduce_async": 5,
    "reducescatter_async": 5,
    "allgather_async": 1,
    "broadcast_async": 2,
    "alltoall_async": 2,
    "reduce_async": 6,
    "gather_async": 2,
    "scatter_async": 3,
    "barrier": 0,
    "barrier_async": 0,
}
"""Where among the arguments of a Group's operation its name is."""
PEER_AT = 1
"""Likewise the other rank of send_async and recv_async."""


def profiled(group: Group) -> Group:
    """The group; while a profiler is on, one whose operations are ranges. What torch.compile traces has none."""
    if _profiler._is_profiler_enabled and not is_compiling():
        ranges: Any = _Group(group)
        return ranges  # type: ignore[no-any-return]
    return group


def ranged(title: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes each call of a function a range, while a profiler is on."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def entry(*args: P.args, **kwargs: P.kwargs) -> R:
            if not _profiler._is_profiler_enabled:
                return function(*args, **kwargs)
            with record_function(f"ringreduce.{title}"):
                return function(*args, **kwargs)

        return entry

    return mark


class _Group:
    """A Group of the core, or what stands for one that is not there."""

    __slots__ = ("_group",)

    def __init__(self, group: Group) -> None:
        self._group = group

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._group, attribute)
        kind = attribute.removesuffix("_async")
        if attribute not in NAME_AT and kind not in ("send", "recv"):
            return found

        def call(*arguments: Any) -> Any:
            what = _what(kind, arguments, NAME_AT.get(attribute))
            with record_function(f"ringreduce.{what}"):
                work = found(*arguments)
            return None if work is None else _Work(work, what)

        return call


class _Work:
    """A Work of the core."""

    __slots__ = ("_what", "_work")

    def __init__(self, work: Any, what: str) -> None:
        self._work = work
        self._what = what

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._work, attribute)

    def wait(self, timeout: float | None = None) -> None:
        with record_function(f"ringreduce.wait {self._what}"):
            self._work.wait(timeout)


def _what(kind: str, arguments: tuple[Any, ...], name_at: int | None) -> str:
    """The operation in words."""
    if name_at is None:
        peer = f"rank {arguments[PEER_AT]}" if arguments[PEER_AT] >= 0 else "any rank"
        return f"{kind} {'to' if kind == 'send' else 'from'} {peer}"
    return kind if arguments[name_at] is None else f"{kind} {arguments[name_at]}"
