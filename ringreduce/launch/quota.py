"""How much CPU time and memory the control groups (cgroups) of this process allow, as containers are given them.

setup.py runs this file by itself, before there is a package: it imports nothing of ringreduce.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cpu_quota(proc: Path = Path("/proc/self")) -> float:
    """The smallest quota of this process's groups and of those around them, in CPUs; math.inf where there is none.

    Args:
        proc: what the kernel says about the process: its files cgroup and mountinfo.
    """
    return min((_quota(folder) for folder in _folders(proc, "cpu")), default=math.inf)


def memory_left(proc: Path = Path("/proc/self")) -> float:
    """The least memory that these groups have left, in bytes; math.inf without a limit. Arguments as above."""
    return min((_left(folder) for folder in _folders(proc, "memory")), default=math.inf)


def _quota(folder: Path) -> float:
    """That of one group: cpu.max (version 2), or cpu.cfs_quota_us and cpu.cfs_period_us (version 1)."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not period:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if not (quota.isdecimal() and period.isdecimal()):  # "max", -1, or no such file
        return math.inf
    return int(quota) / int(period)


def _left(folder: Path) -> float:
    """That of one group: memory.max (version 2), or memory.limit_in_bytes (version 1, a huge number: no limit), without
    what is in use but for pages of files, which the kernel drops where it needs room."""
    limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    if not limit.isdecimal():
        return math.inf
    used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes") or "0"
    fields = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    files = fields.get("total_inactive_file") or fields.get("inactive_file", "0")
    return int(limit) - max(0, int(used) - int(files))


def _folders(proc: Path, wanted: str) -> Iterator[Path]:
    """The folders of the groups of a controller, "cpu" or "memory", each with those around it that can be seen."""
    paths: dict[str, PurePosixPath] = {}
    for line in _lines(proc / "cgroup"):
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), PurePosixPath(path))
    for line in _lines(proc / "mountinfo"):
        mount, _, system = line.partition(" - ")
        root, point = (PurePosixPath(field) for field in mount.split(" ")[3:5])
        kind, *_, options = system.split(" ")
        controller = "" if kind == "cgroup2" else wanted
        if kind not in ("cgroup", "cgroup2") or (controller and controller not in options.split(",")):
            continue
        own = paths.get(controller, root)
        inside = own.relative_to(root) if own.is_relative_to(root) else PurePosixPath()
        for group in (inside, *inside.parents):
            yield Path(point / group)


def _lines(path: Path) -> list[str]:
    """A file's lines. Of what ends a line for Python, the kernel writes all but the newline into paths as it is."""
    return [line for line in _read(path).split("\n") if line]


def _read(path: Path) -> str:
    """A file's text, "" where there is none that may be read. Bytes that are no text are as in Python's paths."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""
