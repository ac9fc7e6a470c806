"""Where a package has NCCL (nvidia-nccl-cu12, -cu13), which torch loads from there and other programs do not."""

from __future__ import annotations

import sys
from pathlib import Path

from ringreduce import _core

_INSIDE = Path("nvidia", "nccl", "lib", "libnccl.so.2")


def offer() -> None:
    """Tells the core, which opens it when it first needs one and the process has none. Imports nothing."""
    if not _core.cuda_built():
        return
    for folder in sys.path:
        if (path := Path(folder) / _INSIDE).is_file():
            _core.nccl_found_at(str(path))
            return
