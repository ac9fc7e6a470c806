"""Facts about the machine and the process that a figure cannot be read without."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

import ringreduce
from ringreduce import _core
from ringreduce.plan import processor


def allowed_cores() -> list[int]:
    """Cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def huge_pages() -> dict[str, str]:
    """The chosen setting of transparent huge pages: for anonymous and for shared memory."""
    folder = "/sys/kernel/mm/transparent_hugepage/"
    return {name: _chosen(read(folder + name)) for name in ("enabled", "shmem_enabled")}


def isa() -> str:
    """The CPU kernels in use: the best that the machine has, unless RINGREDUCE_ISA says otherwise."""
    forced = os.environ.get("RINGREDUCE_ISA", "auto")
    return _core.isas()[0] if forced in ("", "auto") else forced


def facts() -> dict[str, object]:
    """What identifies this machine, this Python and this ringreduce."""
    return {
        "ringreduce": ringreduce.__version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": processor(),
        "cores_online": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "isa": isa(),
        "huge_pages": huge_pages(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def facts_after() -> dict[str, object]:
    """What is known once everything has been measured; the ranks themselves are in it."""
    return {"load_average_after": os.getloadavg()[0]}


def read(path: str) -> str:
    """A file's text; "" when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _chosen(setting: str) -> str:
    found = re.search(r"\[(\w+)\]", setting)
    return found[1] if found else setting or "absent"
