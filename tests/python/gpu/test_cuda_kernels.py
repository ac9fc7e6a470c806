"""The kernels on the device against the CPU's, bit for bit, by tests/cuda's program, which is sanitized too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import cuda_devices
import pytest
from processes import completed

PROGRAM = Path(__file__).resolve().parents[3] / "build" / "cmake" / "tests" / "cuda" / "rr_gpu"


def check(*arguments: str, env: dict[str, str] | None = None) -> dict[str, int]:
    """What the program counted. Fails with what it said where a kernel is wrong."""
    if not PROGRAM.exists():
        pytest.skip("tests/cuda has not been built: -DRR_GPU_CHECK=ON or -DRR_TESTS=ON")
    command = [str(PROGRAM), "check", *arguments]
    done = completed(command, env={**os.environ, **(env or {})})
    assert done.returncode == 0, done.stderr
    counted: dict[str, int] = json.loads(done.stdout)
    assert counted["wrong"] == 0
    return counted


def test_every_kernel_gives_the_bits_of_the_cpus() -> None:
    cuda_devices.need()
    assert check()["cases"] > 1000
