"""All that the report and the page say of a job, found once."""

from __future__ import annotations

from dataclasses import dataclass

from ringreduce.timeline.analysis.critical_path import CriticalPath, critical_path
from ringreduce.timeline.analysis.late import Lateness, lateness_of
from ringreduce.timeline.analysis.links import LinkUse, links_of
from ringreduce.timeline.analysis.operation_table import OperationRow, operation_table
from ringreduce.timeline.analysis.steps import Steps, steps_of
from ringreduce.timeline.analysis.thread_time import RankTime, times_of
from ringreduce.timeline.job import Job


@dataclass(frozen=True)
class Analysis:
    """What was found of one job. times: of each rank that has a file, as in lateness.ranks."""

    job: Job
    times: list[RankTime]
    lateness: Lateness
    path: CriticalPath
    steps: Steps | None
    table: list[OperationRow]
    links: list[LinkUse]

    def total_ns(self, part: str) -> int:
        """One attribute of RankTime, such as "computing_ns", added up over the ranks."""
        return sum(getattr(time, part) for time in self.times)

    def share(self, part: str) -> float:
        """The same as a share of the ranks' time."""
        span_ns = self.total_ns("span_ns")
        return self.total_ns(part) / span_ns if span_ns else 0.0

    @property
    def late(self) -> list[int]:
        """The ranks that make the others wait, by their calls or by the critical path."""
        return [*self.lateness.late, *(rank for rank in self.path.late if rank not in self.lateness.late)]

    @property
    def overlap(self) -> float:
        """The share of communication time in which the main threads computed; 0 without communication."""
        communication_ns = self.total_ns("communication_ns")
        return self.total_ns("hidden_ns") / communication_ns if communication_ns else 0.0

    @property
    def nbytes(self) -> int:
        """Payload of all operations, of each the largest rank's."""
        return int(self.job.operations["nbytes"].sum())


def analyse(job: Job) -> Analysis:
    """Takes about a second for a million operation rows."""
    times = times_of(job)
    lateness = lateness_of(job, times)
    path, steps = critical_path(job, times), steps_of(job, lateness)
    return Analysis(job, times, lateness, path, steps, operation_table(job), links_of(job))
