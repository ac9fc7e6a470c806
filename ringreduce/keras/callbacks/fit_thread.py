"""The thread of fit(): what changes the model, or waits for other ranks, belongs between two steps on it."""

from __future__ import annotations

import threading
from typing import Any

from ringreduce.errors import InvalidArgumentError


class FitThread:
    """Of one callback."""

    def __init__(self) -> None:
        self._ident: int | None = None

    def begin(self) -> None:
        """This is the thread: training begins."""
        self._ident = threading.get_ident()

    def check(self, callback: Any) -> None:
        """Raises InvalidArgumentError on another one.

        Keras calls a callback that stands in no list on threads of a pool, where its backend is torch or JAX: it looks
        for callbacks that forbid that in lists only.
        """
        if self._ident not in (None, threading.get_ident()):
            name = type(callback).__name__
            raise InvalidArgumentError(
                f"{name}: Keras calls it on another thread, beside the next step: give fit() a list, callbacks=[...], "
                f"in place of one {name}"
            )
