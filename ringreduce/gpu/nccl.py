"""NCCL, where it is. The core loads it: the one that torch has loaded, else the one found here, else the system's."""

from __future__ import annotations

import functools
from pathlib import Path

from ringreduce import _core


@functools.cache
def look() -> None:
    """Tells the core of the library in NVIDIA's wheel (nvidia-nccl-cu13), if that is installed. Imports nothing."""
    import importlib.util

    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        library = Path(folder) / "nccl" / "lib" / "libnccl.so.2"
        if library.is_file():
            return _core.nccl_found_at(str(library))
    return None


def version() -> tuple[int, str]:
    """(NCCL's code such as 22705, its name and file), or (0, why there is none)."""
    look()
    return _core.nccl()
