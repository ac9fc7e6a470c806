"""Which GPUs a test may use, asked of the driver itself: no framework is imported, and no context made.

The question is asked in a child: a process that has initialised CUDA cannot fork ranks that use it.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
from fake_cuda import LIBRARY as FAKE

PROBE = """
import ctypes, json, os
cuda = ctypes.CDLL(os.environ.get("RINGREDUCE_CUDA_LIBRARY") or "libcuda.so.1")
def check(status, call):
    if status != 0:
        raise OSError(f"{call} returned error {status}")
check(cuda.cuInit(0), "cuInit")
count, version = ctypes.c_int(), ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
check(cuda.cuDriverGetVersion(ctypes.byref(version)), "cuDriverGetVersion")
names = []
for ordinal in range(count.value):
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    check(cuda.cuDeviceGet(ctypes.byref(device), ordinal), "cuDeviceGet")
    check(cuda.cuDeviceGetName(name, 256, device), "cuDeviceGetName")
    names.append(name.value.decode())
print(json.dumps({"names": names, "cuda": version.value}))
"""
PROBE_S = 30.0


@functools.cache
def probe() -> dict[str, Any]:
    """{"names": of the GPUs, "cuda": the driver's CUDA version as 1000 major + 10 minor, "reason": why there are none}.

    Never raises, and never takes longer than PROBE_S seconds.
    """
    nothing = {"names": [], "cuda": 0}
    try:
        found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_S)
    except subprocess.TimeoutExpired:
        return {**nothing, "reason": f"the driver did not answer within {PROBE_S:.0f} s"}
    if found.returncode != 0:
        return {**nothing, "reason": (found.stderr.strip().splitlines() or ["the probe failed"])[-1]}
    answer: dict[str, Any] = json.loads(found.stdout)
    return {**answer, "reason": "" if answer["names"] else "the driver knows of none"}


def fake_environment(**more: str) -> dict[str, str]:
    """What a process needs to find the fake driver. Skips the test where there is none, or no kernels to launch."""
    from ringreduce import _core

    if not FAKE.exists():
        pytest.skip(f"no fake CUDA driver: {FAKE.name} has not been built (make build)")
    if not _core.cuda_built():
        pytest.skip("this build of ringreduce has no CUDA kernels: there was no nvcc")
    return {"RINGREDUCE_CUDA_LIBRARY": str(FAKE), **more}


def need() -> int:
    """The number of GPUs; skips the test by name where there is none."""
    found = probe()
    if not found["names"]:
        pytest.skip(f"no CUDA device: {found['reason']}")
    return len(found["names"])
