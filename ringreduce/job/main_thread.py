"""The line at which the program's main thread is, for other ranks that wait for this one.

The core calls where() on a thread of its own when another rank asks (csrc/engine/status_answers.h).
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from types import FrameType

from .user_code import is_user_code

SOURCE_LENGTH = 80  # characters shown of a line, at most
FRAMES = 3  # of the program's own, innermost first


def where() -> str:
    """In words: "is at train.py:12 in step: loss.item(), called from train.py:40 in main". Empty: not known."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    own = [one for one in frames if is_user_code(one.f_code.co_filename)] or frames
    if not own:
        return ""
    source = linecache.getline(own[0].f_code.co_filename, own[0].f_lineno).strip()
    text = f"is at {_place(own[0])}" + (f": {source[:SOURCE_LENGTH]}" if source else "")
    if own[0] is not frames[0]:
        text += f" (inside {_place(frames[0])})"
    return text + "".join(f", called from {_place(one)}" for one in own[1:FRAMES])


def _place(frame: FrameType) -> str:
    name = os.path.basename(frame.f_code.co_filename).encode(errors="backslashreplace").decode()
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
