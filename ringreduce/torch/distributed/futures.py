"""The names of collectives that callbacks of futures call.

A callback of a future runs in the thread that completes the future, or, where the future is complete already, in the
thread that adds the callback. So a collective of a callback comes before the program's next one on some ranks, and
after it on others. Collectives without a name are matched by their order. Those of a callback therefore have names,
made of what is the same on all ranks: how many collectives the group had before the callback's work, which of the
work's callbacks it is, and how many collectives the callback has called on the group before.

torch makes its futures in C++, so the methods of single futures cannot be replaced. Importing this replaces then() and
add_done_callback() of torch's class. Futures of other backends behave as before.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

import torch

PREFIX = "torch.callback."
_then: Any = getattr(torch._C.Future.then, "_original", torch._C.Future.then)  # where this is loaded again
_add_done_callback: Any = getattr(torch._C.Future.add_done_callback, "_original", torch._C.Future.add_done_callback)


class Calls:
    """What a program, or one callback, has called: counted by group, so that ranks without a part in it agree.

    Args:
        label: the same on all ranks, and nobody else's.
        ranks: global ranks of which each makes these calls.
    """

    def __init__(self, label: str, ranks: Collection[int]) -> None:
        self.label = label
        self.ranks = frozenset(ranks)
        self._counts: Counter[str] = Counter()

    def next(self, what: str) -> str:
        """The label of the next call on a group, or of the next callback."""
        self._counts[what] += 1
        return self.latest(what)

    def latest(self, what: str) -> str:
        """What next() has returned last."""
        return f"{self.label}.{what}.{self._counts[what]}"


class _Current(threading.local):
    calls: Calls | None = None
    """Of the callback that this thread runs; None: of none."""


_current = _Current()
_works: WeakKeyDictionary[Any, Calls] = WeakKeyDictionary()
"""By future: counts its callbacks."""


def call_name(program: Calls) -> str | None:
    """The name of a collective that is called now; once for each, by all ranks of the group.

    Args:
        program: counts the collectives of this group. What a callback calls gets no name where members of this group
            do not run the callback.
    """
    calls = _current.calls
    if calls is not None and program.ranks <= calls.ranks:
        return PREFIX + calls.next(program.label)
    program.next(program.label)  # what has no name is matched by its order, whoever calls it
    return None


def work_label(program: Calls) -> str | None:
    """The label of the work whose collective was called last; None where ranks might differ."""
    calls = _current.calls or program
    return calls.latest(program.label) if program.ranks <= calls.ranks else None


def label(future: torch.futures.Future[Any], its: str | None, ranks: Collection[int]) -> None:
    """Gives names to what callbacks of a work's future call.

    Args:
        future: of the work.
        its: the work's label; None: what the callbacks call is matched by its order.
        ranks: global ranks that have the work.
    """
    _works[future] = Calls(its or "", ranks if its is not None else ())


def _with_names(future: Any, callback: Callable[[Any], Any], kind: str) -> tuple[Callable[[Any], Any], Calls | None]:
    """The callback with names for what it calls, and what counts that and the callbacks of the future it completes."""
    work = _works.get(future)
    if work is None:
        return callback, None
    calls = Calls(work.next(kind), work.ranks)

    def run(done: Any) -> Any:
        _works.setdefault(done, work)  # it may be another object of Python's for the same future
        outer, _current.calls = _current.calls, calls
        try:
            return callback(done)
        finally:
            _current.calls = outer

    return run, calls


def _named_then(self: Any, callback: Callable[[Any], Any]) -> Any:
    run, calls = _with_names(self, callback, "then")
    future = _then(self, run)
    if calls is not None:
        _works[future] = calls
    return future


def _named_add_done_callback(self: Any, callback: Callable[[Any], None]) -> None:
    _add_done_callback(self, _with_names(self, callback, "callback")[0])


_named_then._original = _then  # type: ignore[attr-defined]
_named_add_done_callback._original = _add_done_callback  # type: ignore[attr-defined]
torch._C.Future.then = _named_then  # type: ignore[method-assign]
torch._C.Future.add_done_callback = _named_add_done_callback  # type: ignore[method-assign]
