"""Children of a rank: forked workers and programs that it starts. They are no ranks, and end without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from deaths import survivors
from ranks import run_ranks, start_ranks, tell_test

NOTICED_S = 2.0


def loads_data() -> Any:
    import torch
    from torch.utils.data import DataLoader, Dataset

    import ringreduce as rr

    torch.set_num_threads(1)

    class Numbers(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> torch.Tensor:
            with pytest.raises(rr.NotInitializedError, match="forked from rank"):
                rr.allreduce(1.0)
            return torch.full((100,), float(index))

    world = rr.init()
    gradient = rr.symmetric_empty(20_000)
    steps = 0
    try:
        while True:
            loader = DataLoader(Numbers(), batch_size=8, num_workers=2, multiprocessing_context="fork")
            for batch in loader:
                gradient[:] = float(batch.sum())
                rr.allreduce_(gradient, op=rr.Sum)
                assert gradient[-1] == world.size * float(batch.sum())
                handle = rr.allreduce_async(np.ones(3), name="loss", op=rr.Sum)
                assert handle.wait()[0] == world.size
                steps += 1
                if steps == 10:  # in the second round, with new workers
                    tell_test("training")
    except rr.Error as error:
        return time.monotonic(), f"{type(error).__name__}: {error}"


def test_a_rank_with_data_loader_workers_is_killed() -> None:
    pytest.importorskip("torch")
    with start_ranks(loads_data, 3) as job:
        killed, others = survivors(job, 1, "training")
    for moment, text in others:
        assert moment - killed < NOTICED_S
        assert text.startswith("PeerLostError: ")
        assert "lost rank 1:" in text


def in_child(work: Any) -> str:
    """What work() returns or raises in a forked child, and how that ends."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    return text + ("" if os.waitpid(child, 0)[1] == 0 else " (died)")


def descriptors() -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue  # the one that listed them
    return [name for name in names if "pidfd" in name or "socket" in name or "ringreduce" in name]


def children() -> list[str]:
    import gc

    import ringreduce as rr

    with rr.init():
        x = rr.symmetric_empty(1000)
        x[:] = 1
        pending = rr.allreduce_async(x, name="pending", op=rr.Sum)

        def frees_everything() -> str:
            nonlocal x, pending
            del x, pending
            gc.collect()
            rr.shutdown()
            return "freed"

        def alone() -> str:
            for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"):
                for prefix in ("RINGREDUCE_", "HOROVOD_"):
                    os.environ.pop(prefix + name, None)
            with rr.init(rank=0, size=1):
                return str(rr.allreduce_async(np.full(2, 5.0), name="own").wait()[0])

        show = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if n != '3'])"
        texts = [
            in_child(pending.done),
            in_child(pending.wait),
            in_child(lambda: rr.poll(pending)),
            in_child(frees_everything),
            in_child(descriptors),
            in_child(alone),
            in_child(lambda: sys.exit(0)),  # runs no exit handlers here, but finalizes nothing either
            subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, close_fds=False).stdout,
        ]
        assert len([name for name in descriptors() if "pidfd" in name]) == rr.size() - 1
        return [*texts, str(pending.wait()[0]), str(rr.allreduce(np.ones(2), op=rr.Sum)[0])]


def test_children_are_no_ranks_and_hold_nothing() -> None:
    for rank, texts in enumerate(run_ranks(children, 3)):
        for text in texts[:3]:
            assert text.startswith("NotInitializedError: "), text
            assert f"forked from rank {rank}" in text
        assert texts[3:7] == ["freed", "[]", "5.0", "SystemExit: 0"]
        assert "pidfd" not in texts[7]
        assert "ringreduce" not in texts[7]
        assert "socket" not in texts[7]
        assert texts[8:] == ["3.0", "3.0"]
