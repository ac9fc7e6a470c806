"""Operations between hosts work in memory whose pages have been faulted in before."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
from ranks import run_ranks
from tcp_jobs import tcp_environment

import ringreduce as rr

NBYTES = 34 << 20
"""More than what malloc keeps when it is freed: 32 MiB."""
ROUNDS = 4
PAGE = 4096
OTHERS = 256
"""Pages that Python may touch meanwhile."""


def faults(kind: str) -> int:
    """In a rank: pages that ROUNDS operations have faulted in, after two."""
    array = np.ones(NBYTES // 4, np.float32)
    halves = [np.ones(NBYTES // 4, np.float16) for _ in range(2)]

    def call() -> None:
        if kind == "reduce":
            rr.reduce(array, 0, op=rr.Max, name="reduced")
        else:
            rr.grouped_allreduce_(halves, op=rr.Average, name="packed")

    with rr.init() as world:
        for _ in range(2):
            call()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(ROUNDS):
            call()
        found = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        return 0 if kind == "reduce" and world.rank == 0 else found  # the root's result is NumPy's


def test_no_page_is_faulted_in_twice(tmp_path: Path) -> None:
    for kind in ("reduce", "grouped"):
        (tmp_path / kind).mkdir()
        for found in run_ranks(faults, 2, args=(kind,), env=tcp_environment(tmp_path / kind)):
            assert found < OTHERS < ROUNDS * NBYTES / PAGE / 100, kind
