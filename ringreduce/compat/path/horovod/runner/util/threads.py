"""Threads in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

__all__ = ["in_thread"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """A started thread that calls target(*args).

    Args:
        daemon: the process does not wait for it at its end.
        silent: exceptions of the target are dropped.

    Raises:
        ValueError: args is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, not {args!r}; for one argument: (argument,)")

    def call() -> None:
        with suppress(Exception) if silent else nullcontext():
            target(*args)

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
