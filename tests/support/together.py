"""Ranks as threads of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each call returned or raised, all run at once."""
    answers: list[Any] = [None] * len(calls)

    def keep(number: int, call: Callable[[], Any]) -> None:
        try:
            answers[number] = call()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=keep, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "hangs"
    return answers
