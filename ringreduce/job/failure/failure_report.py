"""What a rank leaves behind when its job has failed: one file in JSON, for who looks at it afterwards.

    {"ringreduce": "0.1.0", "time": "2026-11-25T20:45:00+00:00", "rank": 0, "size": 8, "host": "n1", "pid": 4711,
     "failure": "... lost rank 5: ...", "calls": "called allreduce 'gradient 3' #812 last",
     "sampled_s": 81.5, "waited_s": [...], "late_s": [...], "stats": {...}, "settings": {...}}

waited_s and late_s are by rank, as of report(): how long the rank waited, and how long others waited for it. The
settings are shown without the job's secret.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ringreduce import _core, config

if TYPE_CHECKING:
    from ringreduce._core import Context


def write(context: Context, rank: int, size: int) -> None:
    """Writes RINGREDUCE_FAILURE_REPORTS/ringreduce-TIME-rank-R.json, where that is set and the job has failed.

    rank, size: of the context. What keeps the file from being written is told on stderr: the job's own error matters
    more.
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
        "failure": failure,
        "calls": context.calls(),
        "sampled_s": sampled_s,
        "waited_s": waited_s,
        "late_s": late_s,
        "stats": context.stats(),
        "settings": {name: config.shown(name, value) for name, value, _ in context.settings()},
    }
    path = os.path.join(
        os.path.expanduser(folder), f"ringreduce-{time.strftime('%Y%m%d-%H%M%S', now)}-rank-{rank}.json"
    )
    part = f"{path}.{os.getpid()}"  # several groups of torch.distributed may fail within a second
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(part, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        print(f"ringreduce: no report of the failure, RINGREDUCE_FAILURE_REPORTS={folder}: {error}", file=sys.stderr)
