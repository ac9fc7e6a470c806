"""The running jobs of this host: found by the memory that their processes hold, read without their help.

A job has one memory for all its ranks on this host, which has counters and what each rank waits for; a job of
torch.distributed has one for each of its process groups. Memories that processes have in common are one job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from ringreduce import _core
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.watch import processes
from ringreduce.watch.processes import Memory, Process


class Wait(NamedTuple):
    """What a rank waits for."""

    kind: str
    """Of the operation; "": it waits for something else, a message or a process set's end say."""
    text: str
    """In words; "": it has not waited for long."""
    missing: tuple[int, ...]
    """Ranks of the job that have not announced the operation, as far as this one knows."""


class LinkReading(NamedTuple):
    """What a rank has sent to another host, since its job's init()."""

    host: int
    nbytes: int
    busy_s: float
    """Seconds in which bytes waited for the link."""


@dataclass(frozen=True)
class RankReading:
    """A rank as it was at one moment. Times and counters are since its job's init()."""

    rank: int
    host: int
    hostname: str
    """"": it runs on another host, and nothing has been heard of it."""
    is_here: bool
    """Whether it runs on this host."""
    age_s: float
    """How old the figures are: ranks elsewhere tell the first host each second."""
    pid: int
    """As this process sees it, or elsewhere as the rank does; 0: not known, it may have ended before it was seen, or be
    hidden from this user."""
    process: Process | None
    """None: it has ended, runs elsewhere, or is not known."""
    attendance: str
    """absent, present, left or removed."""
    has_joined: bool
    cause: str
    """Why it has left; "": it has not said."""
    wait: Wait | None
    waited_s: float
    late_s: float
    """Others of its host have waited for it; of a rank elsewhere as old as age_s says."""
    seen_late_s: float
    """On rank 0's host, of the lowest rank of another host: this host has waited for that host, as of now. Else 0."""
    counters: dict[str, int]
    links: tuple[LinkReading, ...] = ()


@dataclass(frozen=True)
class Reading:
    """A job as it was at one moment."""

    at_s: float
    """By time.monotonic()."""
    sampled_s: float
    """The time that waited_s and late_s speak of."""
    sampler: int
    """The rank that samples it: this host's lowest one."""
    unsampled_s: float
    """For so long it has not; 0: it does, or never has."""
    late: str
    """Which ranks are late again and again, in words; "": none is."""
    failure: str
    """"": it has not failed."""
    ranks: tuple[RankReading, ...]

    @property
    def has_ended(self) -> bool:
        """Whether no process of the job is left on this host, of those that were seen."""
        here = [rank for rank in self.ranks if rank.is_here and rank.pid != 0]
        return bool(here) and not any(rank.process is not None for rank in here)


@dataclass(eq=False)
class _Context:
    """One memory of a job, and the processes that hold it."""

    view: _core.SegmentView
    started: dict[int, float] = field(default_factory=dict)
    """By process: when it was started. A number may be another process's later."""
    inner: dict[int, int] = field(default_factory=dict)
    """Process by its number as it sees itself."""

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self.started)

    def learn(self, pids: Iterable[int]) -> None:
        """Takes note of the processes that hold the memory now; one that holds it no more was a rank all the same."""
        for pid in pids:
            now, own = processes.process(pid), processes.inner_pid(pid)
            if now is not None and own != 0:
                self.started.setdefault(pid, now.started_s)
                self.inner.setdefault(own, pid)

    def living(self, pid: int) -> Process | None:
        """The process that was seen to hold the memory; None: it has ended."""
        now = processes.process(pid) if pid in self.started else None
        return None if now is None or now.state in "ZX" or now.started_s != self.started[pid] else now


_Sums = dict[int, RankReading]
"""By rank: the counters and times of contexts that are no more."""


class Job:
    """A job with ranks on this host. pid: of the process that was started first, as far as they are seen.

    past: of contexts that it had before.
    """

    def __init__(self, contexts: Sequence[_Context], past: _Sums | None = None) -> None:
        self._past = past or {}
        # The job's own context, or the default group of torch.distributed, has all ranks and is the first one made.
        self._contexts = sorted(contexts, key=lambda context: (-context.view.size, context.view.context))
        self.size = self._contexts[0].view.size
        self.hosts = self._contexts[0].view.hosts
        started = {pid: at_s for context in self._contexts for pid, at_s in context.started.items()}
        self.pid = min(started, key=lambda pid: (started[pid], pid))
        self.command = processes.command(self.pid)
        self._started_s = started[self.pid]

    @property
    def pids(self) -> frozenset[int]:
        """Its processes on this host, also those that have ended while it was watched."""
        return frozenset().union(*(context.pids for context in self._contexts))

    @property
    def groups(self) -> int:
        """How many process groups it has beside the one with all ranks, of torch.distributed."""
        return len(self._contexts) - 1

    def runs_for_s(self) -> float:
        """Seconds since its first process was started."""
        return processes.uptime_s() - self._started_s

    def read(self) -> Reading:
        """The job now. Of several contexts: their counters and times together."""
        rows: dict[int, RankReading] = {}
        snapshots = []
        for context in self._contexts:
            snapshot = cast("dict[str, Any]", context.view.read())
            _renumber(snapshot)
            snapshots.append(snapshot)
            for rank in _ranks(context, snapshot["ranks"]):
                rows[rank.rank] = _added(rows[rank.rank], rank) if rank.rank in rows else rank
        for number in rows.keys() & self._past.keys():
            rows[number] = _added(rows[number], self._past[number])
        return Reading(
            at_s=time.monotonic(),
            sampled_s=snapshots[0]["sampled_s"],
            sampler=_sampler(self._contexts[0], snapshots[0]["ranks"]),
            unsampled_s=snapshots[0]["unsampled_s"],
            late=snapshots[0]["late"] if len(snapshots) == 1 else "",
            failure=next(filter(None, (snapshot["failure"] for snapshot in snapshots)), ""),
            ranks=tuple(rows[rank] for rank in sorted(rows)),
        )

    def sums_without(self, contexts: Collection[_Context]) -> _Sums:
        """What it has done in its contexts but these, those it had before among them."""
        sums = dict(self._past)
        for context in self._contexts:
            if context in contexts:
                continue
            snapshot = cast("dict[str, Any]", context.view.read())
            for rank in _ranks(context, snapshot["ranks"]):
                over = replace(rank, wait=None, links=())
                sums[rank.rank] = _added(sums[rank.rank], over) if rank.rank in sums else over
        return sums


def _sampler(context: _Context, shown: Sequence[dict[str, Any]]) -> int:
    """The first of the context's ranks on this host, by its number in the job."""
    return next((rank["job_rank"] for rank in shown if rank["host"] == context.view.host), 0)


def _renumber(snapshot: dict[str, Any]) -> None:
    """Of a group of some of the job's ranks: its texts speak of ranks as the group counts them."""
    job_ranks = [rank["job_rank"] for rank in snapshot["ranks"]]
    if job_ranks == list(range(len(job_ranks))):
        return
    of_group = f"in the process group of ranks {job_ranks}, which it counts from 0: "
    snapshot["late"] = snapshot["late"] and of_group + snapshot["late"]
    snapshot["failure"] = snapshot["failure"] and of_group + snapshot["failure"]
    for rank in snapshot["ranks"]:
        rank["cause"] = rank["cause"] and of_group + rank["cause"]
        if rank["wait"] and not rank["wait"]["kind"]:
            rank["wait"]["text"] = "a message"  # the text has a rank's number, and so has `missing`


def _ranks(context: _Context, shown: Sequence[dict[str, Any]]) -> Iterable[RankReading]:
    job_ranks = [rank["job_rank"] for rank in shown]
    for rank in shown:
        is_here = rank["host"] == context.view.host
        pid = context.inner.get(rank["pid"], 0) if is_here else rank["pid"]
        wait = rank["wait"]
        yield RankReading(
            rank=rank["job_rank"],
            host=rank["host"],
            hostname=rank["hostname"],
            is_here=is_here,
            age_s=rank["age_s"],
            pid=pid,
            process=context.living(pid) if is_here else None,
            attendance=rank["attendance"],
            has_joined=rank["has_joined"],
            cause=rank["cause"],
            wait=wait and Wait(wait["kind"], wait["text"], tuple(job_ranks[missing] for missing in wait["missing"])),
            waited_s=rank["waited_s"],
            late_s=rank["late_s"],
            seen_late_s=rank["seen_late_s"],
            counters=rank["stats"],
            links=tuple(LinkReading(link["host"], link["nbytes"], link["busy_s"]) for link in rank["links"]),
        )


def _added(rank: RankReading, other: RankReading) -> RankReading:
    """The rank, with what it does in another one of the job's contexts."""
    return replace(
        rank,
        wait=rank.wait or other.wait,
        waited_s=rank.waited_s + other.waited_s,
        late_s=rank.late_s + other.late_s,
        seen_late_s=rank.seen_late_s + other.seen_late_s,
        counters={name: value + other.counters[name] for name, value in rank.counters.items()},
        links=rank.links or other.links,  # groups of other ranks count hosts otherwise
    )


class Jobs:
    """All jobs of this host that the user may look at; look() finds new ones."""

    def __init__(self) -> None:
        self._contexts: dict[Memory, _Context] = {}
        self._jobs: dict[frozenset[Memory], Job] = {}
        self.unreadable: dict[Memory, str] = {}
        """Memory of jobs that cannot be read, and why."""

    def look(self) -> list[Job]:
        """The jobs that run now, in the order of their first process. Reads a few files of each process in /proc."""
        holders: dict[Memory, dict[int, str]] = {}
        for pid in processes.processes():
            for memory, path in processes.memories(pid).items():
                holders.setdefault(memory, {})[pid] = path
        self._contexts = {memory: known for memory, known in self._contexts.items() if memory in holders}
        self.unreadable = {}
        for memory, paths in holders.items():
            self._learn(memory, paths)
        return sorted(self._known(holders), key=lambda job: job.pid)

    def _learn(self, memory: Memory, paths: dict[int, str]) -> None:
        if memory not in self._contexts:
            why = "its processes have ended"
            for path in paths.values():
                try:
                    with processes.opened(path, memory) as fd:
                        self._contexts[memory] = _Context(_core.SegmentView(fd))
                    break
                except (OSError, Error) as error:
                    why = str(error)
            else:
                self.unreadable[memory] = f"process {min(paths)}: {why}"
                return
        self._contexts[memory].learn(paths)
        if not self._contexts[memory].started:
            del self._contexts[memory]  # they have ended meanwhile

    def _known(self, holders: dict[Memory, dict[int, str]]) -> Iterable[Job]:
        left = {memory: set(holders[memory]) for memory in self._contexts}
        jobs: dict[frozenset[Memory], Job] = {}
        while left:
            first, pids = left.popitem()
            together = {first}
            while joined := {memory for memory, held in left.items() if held & pids}:
                for memory in joined:
                    pids |= left.pop(memory)
                together |= joined
            key = frozenset(together)
            jobs[key] = self._jobs.get(key) or self._changed(key)
        self._jobs = jobs
        return jobs.values()

    def _changed(self, key: frozenset[Memory]) -> Job:
        """A new job, or one that has other contexts than before: its counters go on."""
        contexts = [self._contexts[memory] for memory in key]
        past: _Sums = {}
        for before, job in self._jobs.items():
            for rank, sums in job.sums_without(contexts).items() if before & key else ():
                past[rank] = _added(past[rank], sums) if rank in past else sums
        return Job(contexts, past)


def of_process(jobs: Iterable[Job], pid: int, unreadable: Mapping[Memory, str] | None = None) -> Job:
    """The job of which the process is a rank, else the one whose ranks it has started (ringrun, mpirun, a shell).

    unreadable: of other jobs, see Jobs. Raises InvalidArgumentError where there is none, or the process has started
    several.
    """
    jobs = list(jobs)
    found = [job for job in jobs if pid in job.pids]  # a rank may have started other jobs
    found = found or [job for job in jobs if any(pid in processes.ancestors(one) for one in job.pids)]
    if len(found) > 1:
        numbers = ", ".join(str(job.pid) for job in found)
        raise InvalidArgumentError(f"process {pid} has started several jobs: give one of {numbers}")
    if not found:
        raise InvalidArgumentError(_why_none(pid, unreadable or {}))
    return found[0]


def _why_none(pid: int, unreadable: Mapping[Memory, str]) -> str:
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return f"there is no process {pid}"
    if os.geteuid() not in (0, owner):
        return f"process {pid} belongs to another user, whose jobs cannot be read"
    for one in processes.processes() if unreadable else ():
        if pid in processes.ancestors(one):
            for memory in processes.memories(one).keys() & unreadable.keys():
                return unreadable[memory]
    return f"process {pid} is no rank of a job on this host, and has started none"
