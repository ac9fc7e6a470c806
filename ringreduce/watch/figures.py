"""What the readings of a job say of its ranks: a state, and rates over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ringreduce.timeline.wording import counted, printable
from ringreduce.watch.jobs import Job, RankReading, Reading

WINDOW_S = 2.0
"""Rates and shares are of so long: the job itself is sampled twenty times a second."""

_SAME_S = 0.001
"""Two readings of a rank elsewhere may be of the same news."""
_TOLD_LEAST_S = 0.5
"""Between two pieces of news of a rank elsewhere, which come once a second. Waits are sampled at least so often."""

_MOST_OF_A_COMMAND = 200
_BUSY_SHARE = 0.5
"""Of a core: a rank that waits for nobody and uses less waits for input, a disk, a lock or a device."""


@dataclass(frozen=True)
class RankFigures:
    """A rank's row. Rates and shares are of the last WINDOW_S; None: nothing is known of them (yet)."""

    rank: int
    host: int
    """The number of its host, from 0 on."""
    is_here: bool
    """Whether it runs on this host."""
    hostname: str | None
    """None: it runs on another host, and nothing has been heard of it. The first host hears of all, once a second."""
    age_s: float
    """Seconds since the figures were seen; 0 on this host."""
    pid: int | None
    """As this process sees it; elsewhere as the rank does."""
    state: str
    """One of: starting, computing, idle (it waits neither for ranks nor uses a core), waiting (in a call), joined
    (waits in join()), stopped (by a signal), left, removed, dead, unseen (its process is not found: it has ended before
    anybody looked, or is hidden from this user), elsewhere (on another host, and nothing has been heard of it for
    SILENT_S). What a process does is seen on its own host only: of other hosts "computing" is all that is no wait."""
    operation: str | None
    """In which it waits, once it has waited for 0.1 s: "allreduce 'loss' #12"; before, its kind."""
    missing: tuple[int, ...]
    """Ranks that have not announced this operation."""
    cause: str | None
    """Why it has left."""
    operations_per_s: float | None
    bytes_per_s: float | None
    """Of operands of operations that have ended."""
    bus_bytes_per_s: float | None
    """busbw: of stats()'s bytes_on_bus."""
    wire_bytes_per_s: float | None
    """Sent to other hosts."""
    cpu_share: float | None
    """Of one core, by all its threads: 2.0 are two cores."""
    waited_share: float | None
    """0 to 1: of its time, in which it waited in a call, for other ranks or for bytes under way."""
    late_share: float | None
    """0 to 1: of the time, in which most others waited for it. None also where the job has several process groups: each
    sees the waits in its own operations only."""
    counters: dict[str, float]
    """Since init(): waited_s in seconds, late_s where late_share is known, and the counters of ringreduce.stats().
    late_s is what the rank's own host waited for it; seen_late_s, of ranks elsewhere, what rank 0's host waited for
    theirs."""
    text: str = ""
    """The state in words."""


@dataclass(frozen=True)
class LinkFigures:
    """From one host to another one, in the last WINDOW_S."""

    from_host: int
    to_host: int
    bytes_per_s: float
    busy_share: float
    """0 to 1: of the time, in which it had bytes that the network did not take yet."""


@dataclass(frozen=True)
class JobFigures:
    """A job's table."""

    pid: int
    """Of the process that was started first on this host."""
    command: str
    size: int
    hosts: int
    groups: int
    """Of torch.distributed, beside the one with all ranks."""
    running_s: float
    has_ended: bool
    late: str
    """Which ranks are late again and again, what they do meanwhile, and which links are slow; "": none is."""
    failure: str
    """"": it has not failed."""
    unsampled: str
    """Why nobody can tell now who waits and who is late, in words; "": somebody can."""
    ranks: tuple[RankFigures, ...]
    links: tuple[LinkFigures, ...] = ()
    """Between hosts, the busiest first: of all on the first host, else of those that leave this host."""

    def as_json(self) -> dict[str, Any]:
        """As `ringreduce top --once --json` prints it."""
        return {**asdict(self), "title": title(self)}


SILENT_S = 5.0
"""A rank elsewhere that is heard of each second, and was not for so long, is one of which nothing is known."""


class Watched:
    """A job that is read again and again."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._readings: deque[Reading] = deque()
        self._last: JobFigures | None = None

    def look(self) -> JobFigures:
        """Reads the job once more. Once it has ended, its last figures stay."""
        if self._last is not None and self._last.has_ended:
            return self._last
        now = self.job.read()
        before = self._before(now)
        earlier = {rank.rank: rank for rank in before.ranks} if before is not None else {}
        unsampled = _unsampled(now)
        self._last = JobFigures(
            pid=self.job.pid,
            command=self.job.command,
            size=self.job.size,
            hosts=self.job.hosts,
            groups=self.job.groups,
            running_s=self.job.runs_for_s(),
            has_ended=now.has_ended,
            late="" if unsampled else now.late,
            failure=now.failure,
            unsampled=unsampled,
            ranks=tuple(
                _figures(rank, earlier.get(rank.rank), now, before, self.job.groups == 0) for rank in now.ranks
            ),
            links=tuple(_links(now, before, earlier)),
        )
        return self._last

    def _before(self, now: Reading) -> Reading | None:
        """The reading with which `now` is compared: the newest that is as old as the window, else the oldest."""
        while len(self._readings) > 1 and self._readings[1].at_s <= now.at_s - WINDOW_S:
            self._readings.popleft()
        before = self._readings[0] if self._readings else None
        self._readings.append(now)
        return before


def _figures(
    rank: RankReading, earlier: RankReading | None, now: Reading, before: Reading | None, is_one_group: bool
) -> RankFigures:
    """earlier: of the rank, in `before`."""
    elapsed_s = told_s = seen_s = 0.0  # between what is known of the rank then and now; sampled there, sampled here
    if before is not None and earlier is not None and _is_known(rank) and _is_known(earlier):
        elapsed_s = (now.at_s - rank.age_s) - (before.at_s - earlier.age_s)
        seen_s = now.sampled_s - before.sampled_s
        told_s = seen_s if rank.is_here else elapsed_s
    least_s = _SAME_S if rank.is_here else _TOLD_LEAST_S

    def rate(name: str) -> float | None:
        if earlier is None or elapsed_s <= _SAME_S:
            return None
        return max(0, rank.counters[name] - earlier.counters[name]) / elapsed_s

    def share(value: float, value_before: float) -> float | None:
        return _share(value - value_before, told_s) if told_s > least_s else None

    def late_share() -> float | None:
        """That its own host waited for it, or this one for its host: neither knows of the other's waits."""
        if not is_one_group or earlier is None:
            return None
        shares = [share(rank.late_s, earlier.late_s)]
        if not rank.is_here and seen_s > _SAME_S:
            shares.append(_share(rank.seen_late_s - earlier.seen_late_s, seen_s))
        return max((known for known in shares if known is not None), default=None)

    cpu_share = None
    if earlier is not None and rank.process is not None and earlier.process is not None and elapsed_s > _SAME_S:
        cpu_share = max(0.0, rank.process.cpu_s - earlier.process.cpu_s) / elapsed_s
    state = _state(rank, cpu_share)
    wait = rank.wait if state in ("waiting", "joined", "stopped") else None
    found = RankFigures(
        rank=rank.rank,
        host=rank.host,
        is_here=rank.is_here,
        hostname=rank.hostname or None,
        age_s=rank.age_s,
        pid=rank.pid or None,
        state=state,
        operation=(wait.text or wait.kind or None) if wait is not None else None,
        missing=wait.missing if wait is not None else (),
        cause=rank.cause or None,
        operations_per_s=rate("operations"),
        bytes_per_s=rate("bytes_moved"),
        bus_bytes_per_s=rate("bytes_on_bus"),
        wire_bytes_per_s=rate("bytes_on_wire"),
        cpu_share=cpu_share,
        waited_share=share(rank.waited_s, earlier.waited_s if earlier is not None else 0.0),
        late_share=late_share(),
        counters={"waited_s": rank.waited_s, **_late_counters(rank, is_one_group), **rank.counters},
    )
    return replace(found, text=state_text(found))


def _share(part_s: float, of_s: float) -> float:
    return min(1.0, max(0.0, part_s) / of_s)


def _late_counters(rank: RankReading, is_one_group: bool) -> dict[str, float]:
    if not is_one_group:
        return {}
    return {"late_s": rank.late_s} if rank.is_here else {"late_s": rank.late_s, "seen_late_s": rank.seen_late_s}


def _unsampled(now: Reading) -> str:
    """What the rank does that looks who waits, where it does not: who is late is its word."""
    rank = next((one for one in now.ranks if one.rank == now.sampler), None)
    if rank is None or rank.attendance != "present" or rank.process is None or now.sampled_s == 0:
        return ""  # it has ended, and that is seen; or there is nobody to wait for
    is_stopped = rank.process.state in "Tt"
    if not is_stopped and now.unsampled_s == 0:
        return ""
    why = "it is stopped" if is_stopped else f"it hangs, or gets no core, for {now.unsampled_s:.0f} s"
    return f"rank {rank.rank} does not look who waits on this host, and who is late is not known: {why}"


def _links(now: Reading, before: Reading | None, known: dict[int, RankReading]) -> list[LinkFigures]:
    """Of a host's ranks the one whose connections were busy longest counts, and the bytes of all.

    known: the ranks of `before`.
    """
    found: dict[tuple[int, int], LinkFigures] = {}
    for rank in now.ranks:
        earlier = known.get(rank.rank)
        if before is None or earlier is None or len(earlier.links) != len(rank.links):
            continue
        elapsed_s = (now.at_s - rank.age_s) - (before.at_s - earlier.age_s)
        for link, link_before in zip(rank.links, earlier.links, strict=True):
            if elapsed_s <= _SAME_S or not _is_known(rank):
                continue
            key = (rank.host, link.host)
            last = found.get(key, LinkFigures(*key, 0.0, 0.0))
            share = min(1.0, max(0.0, link.busy_s - link_before.busy_s) / elapsed_s)
            rate = max(0, link.nbytes - link_before.nbytes) / elapsed_s
            found[key] = LinkFigures(*key, last.bytes_per_s + rate, max(last.busy_share, share))
    return sorted(found.values(), key=lambda link: -link.busy_share)


def _is_known(rank: RankReading) -> bool:
    return rank.is_here or (rank.hostname != "" and rank.age_s < SILENT_S)


def state_text(rank: RankFigures) -> str:
    """In words: "waiting in allreduce 'loss' #12 for ranks 1, 3"."""
    if rank.state == "elsewhere":
        return "on another host, and nothing is heard of it here"
    if rank.state == "unseen":
        return "unseen: its process has ended, or is hidden from this user"
    if rank.state == "idle":
        return "idle: waits for input, a disk, a lock or a device"
    text = rank.state
    if rank.operation:
        text += f" in {printable(rank.operation, 120)}"
    if rank.missing:
        text += f" for {_listed(rank.missing)}"
    if rank.cause:
        text += f": {printable(rank.cause, 400)}"
    return text


def title(job: JobFigures) -> str:
    """ "job 4711  python train.py  4 ranks  for 2:13:05"."""
    parts = [f"job {job.pid}", printable(job.command, _MOST_OF_A_COMMAND), counted(job.size, "rank")]
    if job.hosts > 1:
        parts.append(counted(job.hosts, "host"))
    if job.groups:
        parts.append(f"{counted(job.groups, 'process group')} beside the default one")
    parts.append(f"for {_clock(job.running_s)}")
    return "  ".join(filter(None, parts))


def _listed(ranks: Sequence[int]) -> str:
    most = 8
    text = ", ".join(str(rank) for rank in ranks[:most])
    if len(ranks) > most:
        text += f" and {len(ranks) - most} others"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {text}"


def _clock(seconds: float) -> str:
    """ "0:07", "2:13:05"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _state(rank: RankReading, cpu_share: float | None) -> str:
    if rank.attendance in ("left", "removed"):
        return rank.attendance
    if not _is_known(rank):
        return "elsewhere"
    if rank.attendance == "absent":
        return "starting"
    if rank.is_here and rank.process is None and rank.pid != 0:
        return "dead"
    if rank.process is not None and rank.process.state in "Tt":
        return "stopped"
    if rank.has_joined:
        return "joined"
    if rank.wait is not None:
        return "waiting"
    if rank.is_here and rank.process is None:
        return "unseen"
    if rank.process is None or rank.process.state == "R" or cpu_share is None or cpu_share >= _BUSY_SHARE:
        return "computing"
    return "idle"
