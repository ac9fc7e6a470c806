"""The line at which the program's main thread is, for other ranks that wait for this one.

The core calls where() on a thread of its own when another rank asks (csrc/engine/late/status_answers.h).
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NamedTuple

from ringreduce.job.user_code import is_user_code

SOURCE_LENGTH = 80  # characters shown of a line, at most
OWN_FRAMES = 3  # shown of the program's own, innermost first


class Place(NamedTuple):
    """A line of a file, within a function."""

    path: str
    line: int
    function: str

    def __str__(self) -> str:
        name = os.path.basename(self.path).encode(errors="backslashreplace").decode()
        return f"{name}:{self.line} in {self.function}"


def where(known: Callable[[str], None]) -> None:
    """Calls known("is at train.py:12 in step, called from train.py:40 in main"), and again with the source line.

    The line is read from a file, which may lie on a disk that hangs: so it comes second.
    """
    places = _places()
    own = [one for one in places if is_user_code(one.path)] or places
    if not own:
        return
    inside = f" (inside {places[0]})" if own[0] is not places[0] else ""
    callers = "".join(f", called from {one}" for one in own[1:OWN_FRAMES])
    known(f"is at {own[0]}{inside}{callers}")
    source = linecache.getline(own[0].path, own[0].line).strip()
    if source:
        known(f"is at {own[0]}: {source[:SOURCE_LENGTH]}{inside}{callers}")


def _places() -> list[Place]:
    """Of the main thread at this moment, innermost first. No frame is kept: frames keep what their variables hold."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    places = []
    while frame is not None:
        places.append(Place(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return places
