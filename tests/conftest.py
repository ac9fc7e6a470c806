"""What every test may use: run_ranks and start_ranks (ranks.py), a GPU or a skip, and a watch over /dev/shm."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_devices
import pytest
import ranks
from ranks import SIZES, Outcome, Ranks, receive_from_test, run_ranks, send_to_test, start_ranks

__all__ = ["SIZES", "Outcome", "Ranks", "receive_from_test", "run_ranks", "send_to_test", "sizes", "start_ranks"]

pytest.register_assert_rewrite("kills", "horovod_names", "example_runs", "bench_train_jobs")
sizes = SIZES
OTHERS = ("vader_segment", "sm_segment", "mpich", "openmpi", "pmix", "ucx", "cuda.shm", "nccl-")
"""How MPI implementations, CUDA and NCCL name what they leave behind when they are killed; none of ours."""
# In the background (nohup, a job server) these come ignored, and all that is started here would ignore them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# What XLA has compiled for a test of JAX is compiled once, not by each rank and each run: 20 of 57 s of such a test.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
SHARED = pytest.StashKey[set[str]]()
"""What was in /dev/shm before the tests."""
SETTLE_S = 5.0  # torch's shared tensors go away a moment after their last user


@pytest.fixture(name="run_ranks")
def run_ranks_fixture() -> Callable[..., list[Any]]:
    return ranks.run_ranks


@pytest.fixture(name="start_ranks")
def start_ranks_fixture() -> Callable[..., Ranks]:
    return ranks.start_ranks


@pytest.fixture
def gpu() -> None:
    """Skips the test by name where there is no GPU."""
    cuda_devices.need()


@pytest.fixture
def torch_gpu(gpu: None) -> None:
    """Likewise where there is no torch."""
    pytest.importorskip("torch")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[SHARED] = _mine_in_dev_shm()


def pytest_collection_finish() -> None:
    """What pytest has collected stays, so the garbage collector need not look at it again: 7 % of pytest's CPU time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing is left in /dev/shm. Workers of pytest-xdist, and what they start, do not look: others may be at work."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    deadline = time.monotonic() + SETTLE_S
    while left := _mine_in_dev_shm() - session.config.stash[SHARED]:
        if time.monotonic() > deadline:
            raise pytest.UsageError(f"left in /dev/shm: {sorted(left)}")
        time.sleep(0.05)


def _mine_in_dev_shm() -> set[str]:
    mine = set()
    for path in Path("/dev/shm").iterdir():
        try:
            if path.stat().st_uid == os.geteuid() and not path.name.startswith(OTHERS):
                mine.add(path.name)
        except FileNotFoundError:
            continue
    return mine
