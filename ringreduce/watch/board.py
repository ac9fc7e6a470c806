"""The jobs that are watched: all of this host, or one."""

from __future__ import annotations

import time

from ringreduce.watch.figures import JobFigures, Watched
from ringreduce.watch.jobs import Job, Jobs, of_process

NEW_JOBS_S = 2.0
"""New jobs, and new process groups of a job, are looked for so often: that reads files of every process in /proc."""


class Board:
    """Looks at the jobs again and again.

    Args:
        process: of a rank, or of what has started the ranks: only this job is watched. It stays when it has ended.

    Raises InvalidArgumentError where no job belongs to the process.
    """

    def __init__(self, process: int | None = None) -> None:
        self._process = process
        self._known = Jobs()
        self._watched: dict[Job, Watched] = {}
        self._looked_s = float("-inf")
        self._find()

    @property
    def jobs(self) -> list[Job]:
        """Those of the last look."""
        return list(self._watched)

    @property
    def unreadable(self) -> list[str]:
        """Jobs that cannot be read, and why."""
        return [] if self._process is not None else list(self._known.unreadable.values())

    def look(self) -> list[JobFigures]:
        """The figures of all jobs, now."""
        if time.monotonic() - self._looked_s >= NEW_JOBS_S:
            self._find()
        return [watched.look() for watched in self._watched.values()]

    def _find(self) -> None:
        jobs = self._known.look()
        self._looked_s = time.monotonic()
        if self._process is not None:
            if not self._watched:
                jobs = [of_process(jobs, self._process, self._known.unreadable)]
            else:
                pids = frozenset().union(*(job.pids for job in self._watched))
                jobs = [job for job in jobs if job.pids & pids] or list(self._watched)
        self._watched = {job: self._watched.get(job) or Watched(job) for job in jobs}
