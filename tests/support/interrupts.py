"""Ctrl-C on a rank that blocks in a call which another rank has not made."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from processes import asleep
from ranks import Ranks, receive_from_test, send_to_test


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


COUNT = 300  # unnamed operations: more than the 256 that a rank may have begun and not finished


def interrupted_while_submitting(
    call: Callable[[list[Any]], Sequence[Any]], make: Callable[[float], Any]
) -> tuple[str, list[float]]:
    """A rank of two, of which the first is interrupted while it waits for room for the last of many operations.

    Then it calls what it has not come to, since unnamed operations meet by their number, and both call once more.

    Args:
        call: begins an unnamed operation for each tensor, and waits for all.
        make: a tensor that is full of a number.

    Returns:
        The error of the second rank's first call, and the first element of each result of the last call.
    """
    import ringreduce as rr

    with rr.init() as world:
        tensors = [make(index) for index in range(COUNT)]
        withdrawn = ""
        if world.rank == 0:
            send_to_test("blocking")
            with pytest.raises(KeyboardInterrupt):
                call(tensors)
            for tensor in tensors:
                tensor[:] = 7.0
            send_to_test("interrupted")
            begun = rr.stats()["operations"] - 1  # one was counted, and got no room
            assert 0 < begun < COUNT
            call([make(0) for _ in range(begun, COUNT)])
        else:
            receive_from_test()
            with pytest.raises(rr.MismatchError) as raised:
                call(tensors)
            withdrawn = str(raised.value)
        firsts = [float(result[0]) for result in call([make(index + 0.5) for index in range(COUNT)])]
        assert world.rank == 1 or all((tensor == 7.0).all() for tensor in tensors)
        return withdrawn, firsts


def check_interrupted_submission(job: Ranks, factor: float) -> None:
    """The test's part of it; factor: what the call makes of a tensor that is full of 1."""
    interrupt_rank_0(job)
    first, second = job.wait()
    assert first.value is not None, job.report()
    assert second.value is not None, job.report()
    assert "rank 0 has withdrawn this operation: an exception" in second.value[0]
    assert first.value[1] == second.value[1] == [factor * (index + 0.5) for index in range(COUNT)]
