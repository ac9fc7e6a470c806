"""A rank that is killed while others work with it, and what these return."""

from __future__ import annotations

import select
import signal
from typing import Any

from ranks import Ranks


def survivors(job: Ranks, victim: int, word: str, delay_s: float = 0) -> tuple[float, list[Any]]:
    """Kills a rank delay_s seconds after all have told the test `word`.

    Returns time.monotonic() of the kill, and what each other rank returned.

    Fails, with every rank's output, if one of them returned nothing, or the ranks hang.
    """
    for rank in range(job.size):
        assert job.receive(rank) == word
    select.select([], [], [], delay_s)  # nobody waits for anything here: any moment will do
    killed = job.kill(victim)
    outcomes = job.wait()
    assert outcomes[victim].status == -signal.SIGKILL, job.report()
    others = [outcome.value for outcome in outcomes if outcome.rank != victim]
    assert all(value is not None for value in others), job.report()
    return killed, others
