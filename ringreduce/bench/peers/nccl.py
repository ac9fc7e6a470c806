"""NCCL, which needs GPUs. The competitors of a comparison are of host memory, where it has none."""

from __future__ import annotations

from pathlib import Path

from ringreduce.bench.peers.cell import Absent, Peer


def find() -> list[Peer | Absent]:
    """Always absent, and why: on a GPU benchmarks/gpu.py has it beside our paths."""
    if not Path("/dev/nvidia0").exists():
        return [Absent("nccl", "no NVIDIA GPU here")]
    return [Absent("nccl", "it takes GPU memory only, this table is of host memory: see benchmarks/gpu.py")]
