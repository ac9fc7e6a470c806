"""The report of a job's timeline as text: what follows from it first, then the figures. report_json.py: as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from ringreduce.timeline import wording
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.clocks import UNKNOWN_NS

WIDTH = 100
MOST_WARNING_LINES = 12
MOST_RANKS = 16
MOST_OF_PATH = 5
MOST_LINKS = 8
PARTS = ("computing_ns", "waiting_ns", "exposed_ns", "message_ns")


def text(found: Analysis) -> str:
    """The whole report, at most 100 columns and about 80 lines."""
    lines = [*_wrapped(headline(found), "  "), *_warnings(found.job.warnings), "", *_paragraphs(conclusions(found))]
    if len(found.job.operations):
        parts = (_of_ranks(found), _of_links(found), _of_path(found), _of_steps(found), _of_operations(found))
        for part in parts:
            rows = list(part)
            lines += ["", *rows] if rows else []
    return "\n".join(lines)


def headline(found: Analysis) -> str:
    """The size of it all."""
    job = found.job
    hosts = job.host_count
    size = job.files[0].size
    ranks = wording.counted(size, "rank") if len(found.times) == size else f"{len(found.times)} of {size} ranks"
    is_known = hosts > 1 and job.clock_error_ns != UNKNOWN_NS
    clocks = f", clocks within {wording.seconds(job.clock_error_ns)}" if is_known else ""
    program = wording.printable(job.files[0].program) or "timeline"
    return (
        f"{program}: {ranks} on {wording.counted(hosts, 'host')}{clocks}, "
        f"{wording.seconds(job.span_ns)}, {wording.counted(len(job.operations), 'operation')}, "
        f"{wording.nbytes(found.nbytes)}"
    )


def shown_ranks(found: Analysis, most: int) -> list[int]:
    """Which of found.times to show: all, or those that the others waited for the longest; ascending."""
    ranks = range(len(found.times))
    if len(ranks) <= most:
        return list(ranks)
    waited, stood = found.lateness.ranks, found.path.others_stood_ns
    latest = sorted(ranks, key=lambda index: -max(waited[index].others_waited_ns, stood[found.times[index].rank]))
    return sorted(latest[:most])


def _warnings(warnings: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for index, warning in enumerate(warnings):
        wrapped = _wrapped("warning: " + wording.warning(warning), "  ")
        if len(lines) + len(wrapped) > MOST_WARNING_LINES:
            return [*lines, f"warning: and {len(warnings) - index} more; --json has them all"]
        lines += wrapped
    return lines


def _paragraphs(sentences: Sequence[str]) -> list[str]:
    return [line for sentence in sentences for line in _wrapped(sentence, "  ")]


def _wrapped(sentence: str, indent: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _of_ranks(found: Analysis) -> Iterator[str]:
    yield "Time of each rank's main thread, and how late the rank was"
    yield (
        f"{'rank':>6} {'host':<16} {'computing':>9} {'waiting':>7} {'exposed':>7} {'message':>7} {'hidden':>6}"
        f" {'last in':>7} {'others waited':>18} {'stood':>6}"
    )
    span_ns = max(found.job.span_ns, 1)
    shown = shown_ranks(found, MOST_RANKS)
    for index in shown:
        time, late = found.times[index], found.lateness.ranks[index]
        shares = [getattr(time, part) / max(time.span_ns, 1) for part in PARTS]
        last = wording.percent(late.last_in / late.judged) if late.judged else "-"
        waited = f"{wording.seconds(late.others_waited_ns)} ({wording.percent(late.others_waited_ns / span_ns)})"
        stood = wording.percent(found.path.others_stood_ns[time.rank] / span_ns) if not found.path.doubt else "-"
        hidden = wording.percent(time.overlap) if time.communication_ns else "-"
        who = f"{time.rank:>6} {wording.printable(time.host, 16):<16}"
        yield f"{who} {_columns(shares)} {hidden:>6} {last:>7} {waited:>18} {stood:>6}"
    if len(shown) < len(found.times):
        yield f"       and {len(found.times) - len(shown)} more, for which the others waited less"
    hidden = wording.percent(found.overlap) if found.total_ns("communication_ns") else "-"
    yield f"{'all':>6} {'':<16} {_columns([found.share(part) for part in PARTS])} {hidden:>6}"
    yield "  waiting: until the last rank has called; exposed: in a wait after that; hidden: the part of the"
    yield "  communication during which the thread computed; stood: the others stood still while the rank"
    yield "  computed on the critical path, in the mean and of the span, as they waited for its calls"


def _columns(shares: Sequence[float]) -> str:
    computing, *others = (wording.percent(share) for share in shares)
    return " ".join([f"{computing:>9}", *(f"{share:>7}" for share in others)])


def _of_links(found: Analysis) -> Iterator[str]:
    if not found.links:
        return
    yield "Links between hosts; busy: the network did not take all bytes yet"
    yield f"{'bytes':>10} {'busy':>6} {'meanwhile':>12}  link"
    shown = found.links[:MOST_LINKS]
    for link in shown:
        rate = wording.rate(link.busy_rate) if link.busy_s > 0 else "-"
        hosts = f"{wording.printable(link.from_host, 27)} to {wording.printable(link.to_host, 27)}"
        slow = ", slow" if link.is_slow else ""
        yield f"{wording.nbytes(link.nbytes):>10} {wording.percent(link.busy_share):>6} {rate:>12}  {hosts}{slow}"
    if len(shown) < len(found.links):
        yield f"{'':>30}  and {wording.counted(len(found.links) - len(shown), 'other')}, less busy"


def _of_path(found: Analysis) -> Iterator[str]:
    path, job = found.path, found.job
    if not path.span_ns:
        return
    unsure = f", not to be relied on: {path.doubt}" if path.doubt else ""
    yield f"Critical path: {wording.seconds(path.span_ns)}{unsure}"
    for rank, ns in list(path.computing_ns.items())[:MOST_OF_PATH]:
        yield _path_line(ns, path.span_ns, f"computing of rank {rank}")
    for (kind, name), ns in list(path.communication_ns.items())[:MOST_OF_PATH]:
        yield _path_line(ns, path.span_ns, wording.label(job.kinds[kind], job.names[name]))
    if path.message_ns:
        yield _path_line(path.message_ns, path.span_ns, "waits for messages")
    hidden = max(len(path.computing_ns) - MOST_OF_PATH, 0), max(len(path.communication_ns) - MOST_OF_PATH, 0)
    if any(hidden):
        yield f"{'':>17} ... and {wording.counted(hidden[0], 'rank')} and {wording.counted(hidden[1], 'name')} more"


def _path_line(ns: int, span_ns: int, what: str) -> str:
    return f"{wording.percent(ns / span_ns):>6} {wording.seconds(ns):>10} {what}"


def _of_steps(found: Analysis) -> Iterator[str]:
    steps = found.steps
    if steps is None:
        return
    p50, p99, longest = (wording.seconds(steps.quantile_ns(share)) for share in (0.5, 0.99, 1.0))
    yield f"{len(steps.lengths_ns)} steps: p50 {p50}, p99 {p99}, max {longest}"
    yield f"from {marker(found)} to the next one; the slowest:"
    for step in steps.slowest:
        late = (
            f"rank {step.late_rank} was late: the others waited {wording.seconds(step.others_waited_ns)} for it"
            if step.late_rank >= 0
            else "no rank stands out"
        )
        yield f"{wording.seconds(step.ns):>10} step {step.number} at {step.begin_ns / 1e9:.3f} s; {late}"


def marker(found: Analysis) -> str:
    """What marks the steps: "allreduce 'loss'", "allreduce of 4.2 MB"."""
    assert found.steps is not None
    row = found.job.operations[found.steps.marker]
    kind, name = found.job.kinds[row["kind"]], found.job.names[row["name"]]
    return wording.label(kind, name) if name else f"{wording.printable(kind, 20)} of {wording.nbytes(row['nbytes'])}"


def _of_operations(found: Analysis) -> Iterator[str]:
    job = found.job
    yield "Operations that were longest under way (start to end on a rank; GPU: until the work was issued)"
    yield (f"{'count':>8} {'bytes':>8} {'time':>8} {'p50':>8} {'p99':>8} {'max':>8} {'busbw GB/s':>10}  operation")
    for row in found.table:
        times = [wording.seconds(ns) for ns in (row.time_ns, row.p50_ns, row.p99_ns, row.max_ns)]
        fast = "GPU" if row.on_gpu else f"{row.busbw_GBps:.2f}" if row.busbw_GBps is not None else "-"
        figures = f"{row.operations:>8} {wording.nbytes(row.nbytes):>8} " + " ".join(f"{time:>8}" for time in times)
        # Once cut, to what the line has room for: a name that is cut twice has lost its end.
        kind = wording.printable(job.kinds[row.kind], 20)
        room = WIDTH - len(figures) - 13 - len(f"{kind} ''")
        yield f"{figures} {fast:>10}  {wording.label(kind, job.names[row.name], room)}"
