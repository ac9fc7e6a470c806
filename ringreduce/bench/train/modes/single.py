"""One process that has the whole batch, on this host: with one thread, or with all allowed cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ringreduce.bench import machine
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.job.environment import Placement
from ringreduce.launch.binding import cores_of, cpu_shares, thread_share

if TYPE_CHECKING:
    from ringreduce.bench.train.options import Options
    from ringreduce.bench.train.spec import Spec


class Single(Mode):
    """One thread, on the first CPU of what would be rank 0's share."""

    name = "single"

    def processes(self, ranks: int) -> int:
        """See Mode."""
        return 1

    def command(self, options: Options, worker: list[str]) -> list[str]:
        """See Mode: no launcher."""
        return worker

    def place(self) -> Placement:
        """See Mode: also where another launcher's variables are about."""
        return Placement(0, 1, 0, 1, 0, 1, "single", "")

    def cpus(self, place: Placement, spec: Spec) -> list[int]:
        """See Mode."""
        return sorted(cpu_shares(spec.ranks)[0])[:1]

    def threads(self, cpus: list[int], place: Placement, spec: Spec) -> int:
        """See Mode: what the user says is for ranks."""
        return thread_share(cores_of(cpus), place.local_size)

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        return Team()


class SingleAll(Single):
    """On all allowed CPUs."""

    name = "single-all"

    def cpus(self, place: Placement, spec: Spec) -> list[int]:
        """See Mode."""
        return machine.allowed_cores()
