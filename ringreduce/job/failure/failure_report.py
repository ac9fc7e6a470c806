"""What a rank leaves behind when its job has failed: one file in JSON, for who looks at it afterwards.

    {"ringreduce": "0.1.0", "time": "2026-11-25T20:45:00+00:00", "rank": 4, "size": 8, "host": "n1", "pid": 4711,
     "group": "ringreduce.torch.3", "ranks": [4, 5, 6, 7],
     "failure": "... lost rank 1: ...", "calls": "called allreduce 'gradient 3' #812 last",
     "sampled_s": 81.5, "waited_s": [...], "late_s": [...], "stats": {...}, "settings": {...}}

rank and size are the job's. Each group of torch.distributed fails by itself and leaves a file: group is its name, null
for the job that init() has joined, and ranks are the job's ranks of its members, in the group's order. failure counts
ranks within the group, and so do waited_s and late_s, as of report(): how long the rank waited, and how long others
waited for it. The settings are shown without the job's secret.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ringreduce import _core, config

if TYPE_CHECKING:
    from ringreduce._core import Context


def write(context: Context, rank: int, size: int, group: str | None = None, ranks: Sequence[int] = ()) -> None:
    """Writes RINGREDUCE_FAILURE_REPORTS/ringreduce-TIME-rank-R.json, where that is set and the context has failed.

    Where that file is there, of another group or job in the same second, the name ends in -2.json, -3.json and so on.
    What keeps the file from being written is told on stderr: the job's own error matters more.

    Args:
        rank, size: of this process in its job.
        group: the name of the context's group; None: the context is that of the whole job.
        ranks: of the group's members in the job, in the group's order; none: all ranks of the job.
    """
    failure = context.failure()
    if failure is None:
        return
    folder = config.value("RINGREDUCE_FAILURE_REPORTS").value
    if not folder:
        return
    now = time.gmtime()
    sampled_s, waited_s, late_s = context.times()
    report = {
        "ringreduce": _core.__version__,
        "time": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", now),
        "rank": rank,
        "size": size,
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "group": group,
        "ranks": list(ranks) or list(range(size)),
        "failure": failure,
        "calls": context.calls(),
        "sampled_s": sampled_s,
        "waited_s": waited_s,
        "late_s": late_s,
        "stats": context.stats(),
        "settings": {name: config.shown(name, value) for name, value, _ in context.settings()},
    }
    stem = os.path.join(os.path.expanduser(folder), f"ringreduce-{time.strftime('%Y%m%d-%H%M%S', now)}-rank-{rank}")
    try:
        os.makedirs(os.path.dirname(stem), exist_ok=True)
        _write_new(stem, json.dumps(report, indent=1))
    except OSError as error:
        print(f"ringreduce: no report of the failure, RINGREDUCE_FAILURE_REPORTS={folder}: {error}", file=sys.stderr)


def _write_new(stem: str, text: str) -> None:
    """Writes the first of STEM.json, STEM-2.json, ... that is not there, whole at once.

    Only the process that has made STEM.json.part makes STEM.json, so that of two processes none replaces the other's.
    """
    for number in itertools.count(1):
        path = f"{stem}.json" if number == 1 else f"{stem}-{number}.json"
        part = f"{path}.part"
        try:
            file = open(part, "x", encoding="utf-8")  # noqa: SIM115  # closed below
        except FileExistsError:
            continue
        try:
            with file:
                file.write(text)
            if not os.path.lexists(path):
                os.rename(part, path)
                return
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
        os.unlink(part)
