"""Where MPIs and peers of the bench are kept that were built here: RINGREDUCE_CACHE, else the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache(name: str) -> Path:
    """The folder of that name in the cache; made if need be."""
    own = os.environ.get("RINGREDUCE_CACHE")
    users = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = (Path(own) if own else Path(users, "ringreduce")) / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
