"""Who is late is the word of one rank of each host: while that rank is stopped or hangs, nobody is blamed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from deadlines import SOON_S
from ranks import start_ranks
from watch_programs import waits_for_rank_1
from watch_readings import RANK, figures, reading

from ringreduce.watch import table
from ringreduce.watch.board import Board
from ringreduce.watch.processes import Process


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"process": Process("T", 0.0, 0.0)}, "it is stopped"),
        ({"process": Process("S", 0.0, 0.0)}, "it hangs, or gets no core, for 7 s"),
        ({"process": None}, ""),
        ({"attendance": "left"}, ""),
    ],
)
def test_nobody_is_blamed_while_the_rank_that_looks_does_not(change: dict[str, Any], why: str) -> None:
    ranks = replace(RANK, rank=2, **change), replace(RANK, rank=3)
    others: dict[str, Any] = {"sampler": 2, "unsampled_s": 7.0}
    seen = figures(reading(10.0, *ranks, late="rank 3 is late: ..." if why else "", **others))
    assert seen.late == ""
    assert seen.unsampled.endswith(why)
    assert bool(seen.unsampled) == bool(why)
    if why:
        assert seen.unsampled.startswith("rank 2 does not look who waits on this host")
        assert seen.unsampled in table.lines(seen)
    looks = figures(reading(10.0, replace(RANK, rank=2), late="rank 3 is late: ...", sampler=2))
    assert (looks.late, looks.unsampled) == ("rank 3 is late: ...", "")


def test_a_rank_0_that_is_stopped_is_said_to_look_no_more() -> None:
    with start_ranks(waits_for_rank_1, 3, args=("allreduce",)) as ranks:
        for rank in range(3):
            assert ranks.receive(rank) == "met"
        board = Board(ranks.procs[0].pid)

        def unsampled_until(is_so: Callable[[str], bool]) -> str:
            deadline = time.monotonic() + SOON_S
            while not is_so(text := board.look()[0].unsampled):
                assert time.monotonic() < deadline, text
            return text

        unsampled_until(lambda text: text == "" and board.jobs[0].read().sampled_s > 0)
        ranks.kill(0, signal.SIGSTOP)
        text = unsampled_until(bool)
        assert text.startswith("rank 0 does not look who waits on this host")
        assert text.endswith("it is stopped")
        (job,) = board.jobs
        deadline = time.monotonic() + SOON_S
        while job.read().unsampled_s == 0:  # the memory says so, too, whatever the process's state
            assert time.monotonic() < deadline
        ranks.kill(0, signal.SIGCONT)
        unsampled_until(lambda text: text == "")
        ranks.send(1)
        assert all(outcome.status == 0 for outcome in ranks.wait()), ranks.report()
