"""One process that has the whole batch: with one thread, or with all allowed cores."""

from __future__ import annotations

from pathlib import Path

from ringreduce.bench import machine
from ringreduce.bench.train.modes.mode import Mode, Team


class Single(Mode):
    """One thread, on the first CPU of what would be rank 0's share."""

    name = "single"

    def shares(self, ranks: int) -> list[list[int]]:
        """See Mode."""
        return [super().shares(ranks)[0][:1]]

    def command(self, processes: int, worker: list[str]) -> list[str]:
        """See Mode: no launcher."""
        return worker

    def rank(self) -> int:
        """See Mode: also where another launcher's variables are about."""
        return 0

    def join(self, folder: Path, timeout_s: float) -> Team:
        """See Mode."""
        return Team()


class SingleAll(Single):
    """On all allowed CPUs."""

    name = "single-all"

    def shares(self, ranks: int) -> list[list[int]]:
        """See Mode."""
        return [machine.allowed_cores()]
