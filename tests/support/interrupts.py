"""Ctrl-C on a rank that blocks in a call which another rank has not made."""

from __future__ import annotations

import signal

from processes import asleep
from ranks import Ranks


def interrupt_rank_0(job: Ranks) -> float:
    """SIGINT to rank 0, which has said "blocking" and blocks; once it says "interrupted", rank 1 is told to go on.

    Returns when the signal was sent, by time.monotonic().
    """
    assert job.receive(0) == "blocking"
    asleep(job.procs[0].pid)
    sent = job.kill(0, signal.SIGINT)
    assert job.receive(0) == "interrupted"
    job.send(1)
    return sent
