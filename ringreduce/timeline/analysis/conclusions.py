"""What follows from a job's figures, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ringreduce.timeline import wording
from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.analysis.late import RankLateness
from ringreduce.timeline.analysis.links import slowest_other_rate
from ringreduce.timeline.record_file import GPU_MEMORY

HIDDEN_SHARE = 0.8
"""Communication is hidden if so much of it overlaps with computing."""
EXPOSED_SHARE = 0.1
"""It is worth a complaint if ranks stand still for it so much of their time."""
NAMELESS_SHARE = 0.05
"""So it is if ranks wait so much of their time for nobody in particular."""
PAUSE_SHARE = 0.02
"""A single delay is told if it cost the others so much of the span."""


def conclusions(found: Analysis) -> list[str]:
    """What a reader needs first, one sentence or two each."""
    if not len(found.job.operations):
        return ["No operation was recorded."]
    parts = (_of_late_ranks, _of_links, _of_communication, _of_path, _of_steps)
    return [sentence for part in parts for sentence in part(found)]


def _of_late_ranks(found: Analysis) -> Iterator[str]:
    lateness, path, span_ns = found.lateness, found.path, max(found.job.span_ns, 1)
    by_rank = {rank.rank: rank for rank in lateness.ranks}
    for rank in (by_rank[number] for number in lateness.late):
        share = wording.percent(rank.last_in / rank.judged)
        cost = _cost(rank.others_waited_ns, span_ns)
        pause = f" Most of it is one pause: {_pause(found, rank)}." if rank.is_pause else ""
        yield (
            f"Rank {rank.rank} makes the others wait: it was last in {share} of "
            f"{wording.counted(rank.judged, 'operation')}; the others waited {cost} for it.{pause}"
        )
    for number in (number for number in path.late if number not in lateness.late):
        computing = wording.percent(path.computing_ns[number] / path.span_ns)
        cost = _cost(path.others_stood_ns[number], span_ns)
        yield (
            f"Rank {number} makes the others wait: its computing is {computing} of the critical path, and meanwhile "
            f"the others stood still {cost}."
        )
    if found.late or len(by_rank) == 1:
        pass
    elif not lateness.names_last.any():
        yield f"Who is late cannot be told: {_why_nameless(found)}."
    else:
        latest = max(by_rank.values(), key=lambda rank: rank.others_waited_ns)
        if latest.waited_in:
            yield (
                f"No rank stands out: the others waited most for rank {latest.rank}, "
                f"{wording.percent(latest.others_waited_ns / span_ns)} of the span; it was last in "
                f"{wording.percent(latest.last_in / latest.judged)} of the operations."
            )
        else:
            yield "No rank stands out: nobody waited for another."
        if (waiting := found.share("waiting_ns")) >= EXPOSED_SHARE:
            yield f"Ranks wait {wording.percent(waiting)} of their time for one another, in turns."
        if latest.is_pause and latest.others_waited_ns > PAUSE_SHARE * span_ns:
            yield f"Rank {latest.rank} has paused: {_pause(found, latest)}."
    if lateness.names_last.any() and lateness.nameless_ns > NAMELESS_SHARE * span_ns:
        yield (
            f"Ranks waited {_cost(lateness.nameless_ns, span_ns)} in operations that name no late rank: "
            f"{_why_nameless(found)}."
        )


def _of_links(found: Analysis) -> Iterator[str]:
    other = slowest_other_rate(found.links)
    others = f"the slowest other one {wording.rate(other)}" if math.isfinite(other) else "no other one was busy"
    for link in (link for link in found.links if link.is_slow):
        yield (
            f"The link from host {wording.printable(link.from_host, 64)} to host "
            f"{wording.printable(link.to_host, 64)} is slow: it carried {wording.rate(link.busy_rate)} while it was "
            f"busy, {wording.percent(link.busy_share)} of the time; {others}."
        )


def _why_nameless(found: Analysis) -> str:
    doubt = "their ranks called closer together than the hosts' clocks can tell, or records of some are missing"
    return found.path.doubt or doubt


def _cost(ns: int, span_ns: int) -> str:
    return f"{wording.seconds(ns)} ({wording.percent(ns / span_ns)} of the span)"


def _pause(found: Analysis, rank: RankLateness) -> str:
    at = found.job.operations[rank.longest_operation]["complete_ns"]
    what = wording.operation(found.job, rank.longest_operation)
    return f"{wording.seconds(rank.longest_ns)} in {what}, which it called at {at / 1e9:.3f} s"


def _of_communication(found: Analysis) -> Iterator[str]:
    if (message := found.share("message_ns")) >= EXPOSED_SHARE:
        yield f"Ranks stand still {wording.percent(message)} of their time in waits for messages."
    exposed, overlap = found.share("exposed_ns"), wording.percent(found.overlap)
    still = f"Ranks stood still for it {wording.percent(exposed)} of their time"
    if (found.job.rows["flags"] & GPU_MEMORY != 0).all():
        yield "No communication on host memory was recorded."
    elif found.overlap >= HIDDEN_SHARE:
        yield f"Communication is hidden: {overlap} overlaps with computing. {still}."
    elif exposed >= EXPOSED_SHARE:
        yield f"Communication is exposed: {overlap} overlaps with computing. {still}."
    else:
        yield f"Communication costs little: {overlap} overlaps with computing. {still}."


def _of_path(found: Analysis) -> Iterator[str]:
    path, job = found.path, found.job
    if not path.span_ns or path.doubt:
        return
    computing = wording.percent(path.all_computing_ns / path.span_ns)
    most = next(iter(path.computing_ns.items()), None)
    of_rank = f" (rank {most[0]}: {wording.percent(most[1] / path.span_ns)})" if most else ""
    communication = wording.percent(path.all_communication_ns / path.span_ns)
    largest = next(iter(path.communication_ns.items()), None)
    of_name = ""
    if largest:
        (kind, name), ns = largest
        of_name = f" ({wording.label(job.kinds[kind], job.names[name])}: {wording.percent(ns / path.span_ns)})"
    messages = wording.percent(path.message_ns / path.span_ns)
    of_messages = f", and {messages} waits for messages" if path.message_ns >= 0.01 * path.span_ns else ""
    parts = f"{computing} computing{of_rank} and {communication} communication{of_name}{of_messages}"
    yield f"The critical path is {parts}."


def _of_steps(found: Analysis) -> Iterator[str]:
    steps = found.steps
    if steps is None:
        return
    slowest = steps.slowest[0]
    late = f", where rank {slowest.late_rank} was late" if slowest.late_rank >= 0 else ""
    yield (
        f"{len(steps.lengths_ns)} steps: p50 {wording.seconds(steps.quantile_ns(0.5))}, "
        f"p99 {wording.seconds(steps.quantile_ns(0.99))}; the slowest took {wording.seconds(slowest.ns)}{late}."
    )
