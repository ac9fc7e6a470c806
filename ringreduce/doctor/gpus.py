"""GPUs: what this build has for them, the driver and NCCL, and the path that operations on their memory take."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from ringreduce import _core, config
from ringreduce.bench import machine
from ringreduce.doctor.finding import Finding
from ringreduce.launch.python import run_code

DRIVER_TIMEOUT_S = 60.0  # cuInit of a machine with eight GPUs takes seconds when nothing keeps the driver awake
ASKED = (
    "import json; from ringreduce import _core; from ringreduce.gpu import nccl; "
    "print(json.dumps([_core.cuda_report(), nccl.version()[1]]))"
)


def cuda() -> Iterator[Finding]:
    """All of it. The driver is asked in a process of its own: one that has started CUDA cannot fork any more."""
    built = _core.cuda_built()
    yield Finding("CUDA", "built in", "yes" if built else "no")
    report, nccl = _asked()
    loaded = report[0][1].startswith("CUDA ")
    kernel = machine.read("/proc/driver/nvidia/version").partition("\n")[0]
    if loaded and not built:
        hint = "GPU tensors need a build of ringreduce with CUDA: build it where nvcc is in PATH"
        yield Finding("CUDA", "driver", report[0][1], "note", hint)
    elif kernel and not loaded:
        yield Finding("CUDA", "driver", f"{report[0][1]}; the kernel has {kernel}", "note")
    else:
        yield Finding("CUDA", "driver", report[0][1] if loaded else f"not found ({report[0][1]})")
    for name, text in report[1:]:
        yield Finding("CUDA", name, text)
    yield Finding("CUDA", "NCCL", nccl)
    if not loaded or len(report) == 1:
        return
    has_nccl = nccl.startswith("NCCL ")
    forced = config.choice("RINGREDUCE_GPU_PATH")
    for name, gpus in (("ranks on one GPU", 1), ("ranks on GPUs of their own", 2)):
        if gpus <= len(report) - 1:
            path, reason = _core.gpu_path(forced, 2, gpus, has_nccl)
            impossible = path == "none"
            yield Finding("CUDA", name, reason if impossible else f"{path}: {reason}", "note" if impossible else "ok")


def _asked() -> tuple[list[tuple[str, str]], str]:
    try:
        done = subprocess.run(run_code(ASKED), capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [("driver", f"does not answer within {DRIVER_TIMEOUT_S:g} s")], "not asked"
    if done.returncode != 0:
        reason = done.stderr.strip().rpartition("\n")[2]
        return [("driver", f"not asked: {reason or f'exit status {done.returncode}'}")], "not asked"
    said: Any = json.loads(done.stdout)
    return [(name, text) for name, text in said[0]], said[1]
