"""NCCL, which needs GPUs; ringreduce has no CUDA transport yet, so there is nothing to put beside it."""

from __future__ import annotations

from pathlib import Path

from ringreduce.bench.peers.cell import Absent, Peer


def find() -> list[Peer | Absent]:
    """Always absent for now, and why."""
    if not Path("/dev/nvidia0").exists():
        return [Absent("nccl", "no NVIDIA GPU here")]
    return [Absent("nccl", "ringreduce reduces no GPU memory yet, so there is nothing to compare")]
