"""The program's own files, as opposed to installed packages, this one and the standard library."""

from __future__ import annotations

import functools
import os
import sysconfig


def is_user_code(path: str) -> bool:
    """Whether a file, as code.co_filename names it, is the program's own."""
    return not path.startswith(_others())


@functools.cache
def _others() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    others = tuple(os.path.join(paths[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return (*others, os.path.join(os.path.dirname(os.path.dirname(__file__)), ""), "<frozen ")
