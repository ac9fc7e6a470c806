"""Ranks that have joined and then leave, or are stopped, while the others go on."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
from deadlines import SOON_S
from processes import asleep
from ranks import receive_from_test, send_to_test, start_ranks


def leaves_within_join(count: int, name: str | None) -> str:
    """Rank 2 joins, is interrupted, and leaves; returns what another rank gets at one of its next operations."""
    import ringreduce as rr

    rr.init()
    x = np.full(count, rr.rank() + 1.0, np.float32)
    if rr.rank() == 2:
        unread = rr.allreduce_async(x, name="same", op=rr.Sum)
        send_to_test("joins")
        with pytest.raises(KeyboardInterrupt):
            rr.join()
        rr.shutdown()
        send_to_test("left")
        del unread
        return ""
    receive_from_test()
    try:
        for call in range(8):
            rr.allreduce(x, name=name or f"step {call}", op=rr.Sum)
    except rr.Error as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


# 16 MB pass through the staging area, which rank 2 would empty; 16 B of one name need what rank 2 has not read.
@pytest.mark.parametrize(("count", "name"), [(4_000_000, None), (4, "same")])
def test_a_rank_leaves_within_join(count: int, name: str | None) -> None:
    with start_ranks(leaves_within_join, 3, args=(count, name)) as job:
        assert job.receive(2) == "joins"
        asleep(job.procs[2].pid)
        job.kill(2, signal.SIGINT)
        assert job.receive(2) == "left"
        for rank in (0, 1):
            job.send(rank)
        first, second, _ = job.wait(SOON_S)
    for outcome in (first, second):
        assert outcome.value.startswith("ShutdownError: "), job.report()
        assert "(rank 2 called shutdown() or ended;" in outcome.value


def is_stopped_within_join() -> str:
    import ringreduce as rr

    rr.init()
    x = np.full(4, rr.rank() + 1.0, np.float32)
    if rr.rank() == 2:
        unread = rr.allreduce_async(x, name="same", op=rr.Sum)
        send_to_test("joins")
        rr.join()
        del unread
        return "joined"
    receive_from_test()
    try:
        for _ in range(4):
            rr.allreduce(x, name="same", op=rr.Sum)
    except rr.Error as error:
        send_to_test(f"{type(error).__name__}: {error}")
        return "failed"
    return "no error"


def test_a_rank_is_stopped_within_join() -> None:
    env: dict[str, Any] = {"RINGREDUCE_TIMEOUT": "3"}
    with start_ranks(is_stopped_within_join, 3, env=env) as job:
        assert job.receive(2) == "joins"
        asleep(job.procs[2].pid)
        job.kill(2, signal.SIGSTOP)
        for rank in (0, 1):
            job.send(rank)
        texts = [job.receive(rank, SOON_S) for rank in (0, 1)]
        job.kill(2, signal.SIGCONT)
    for text in texts:
        assert text.startswith("TimeoutError: "), text
        assert "because an earlier operation of this name has not ended on rank(s) 2, which joined" in text
        assert "rank(s) 2 show no sign of life" in text
