"""Command lines that start Python: on a user's script or module, and on this package's own modules.

`python -m` and `python -c` search the working directory first. Where that is a checkout, its folder ringreduce/, which
need not be built, would hide the installed package. So the commands here search the package of this process instead.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_HERE = str(Path(__file__).resolve().parents[2])
_PREPARE = f"import sys; sys.path[:] = filter(None, sys.path); {_HERE!r} in sys.path or sys.path.insert(0, {_HERE!r})"


def run_module(name: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, as `python -m` does."""
    return run_code(f"import runpy; runpy.run_module({name!r}, run_name='__main__', alter_sys=True)", *arguments)


def run_code(code: str, *arguments: str) -> list[str]:
    """The command that runs code which may import this package."""
    return [sys.executable, "-c", f"{_PREPARE}; {code}", *arguments]


def run_script(command: Sequence[str]) -> list[str]:
    """The command, with this Python before a file *.py that is no program by itself."""
    script = command[0].endswith(".py") and Path(command[0]).is_file() and shutil.which(command[0]) is None
    return [sys.executable, *command] if script else list(command)
