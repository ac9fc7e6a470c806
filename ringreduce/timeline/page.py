"""The report of a job's timeline as one HTML file, which needs no other file, no network and no script to be read."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ringreduce.timeline import wording
from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.drawing import charts
from ringreduce.timeline.drawing.picture import picture, windows
from ringreduce.timeline.drawing.style import SCRIPT, STYLE
from ringreduce.timeline.report import PARTS, headline, marker
from ringreduce.timeline.whole_file import whole_file

MOST_BARS = 10


def write(found: Analysis, path: Path) -> None:
    """Writes the page.

    Raises InvalidArgumentError where the file cannot be written.
    """
    document = html(found)
    with whole_file(path) as file:
        file.write(document.encode())


def html(found: Analysis) -> str:
    """The page. Nothing in it comes from elsewhere, and a browser runs no script but SCRIPT, whatever the names say."""
    digest = b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = f"Timeline of {wording.printable(found.job.files[0].program) or 'a job'}"
    parts = [_header(found, title)]
    if len(found.job.operations):
        parts += [_ranks(found), _links(found), _pictures(found), _steps(found), _path(found), _operations(found)]
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}<script>{SCRIPT}</script></body></html>\n"
    )


def _header(found: Analysis, title: str) -> str:
    def items(name: str, sentences: Sequence[str]) -> str:
        rows = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
        return f'<ul class="{name}">{rows}</ul>' if rows else ""

    warnings = [wording.warning(warning) for warning in found.job.warnings]
    return (
        f"<h1>{escape(title)}</h1><p>{escape(headline(found))}</p>"
        f"{items('warnings', warnings)}{items('conclusions', conclusions(found))}"
    )


def _table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Of cells that are HTML already."""
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _ranks(found: Analysis) -> str:
    def rows() -> Iterator[Sequence[str]]:
        span_ns = max(found.job.span_ns, 1)
        for time, late in zip(found.times, found.lateness.ranks, strict=True):
            shares = [getattr(time, part) / max(time.span_ns, 1) for part in PARTS]
            yield (
                str(time.rank),
                escape(wording.printable(time.host, 24)),
                charts.stacked(shares),
                *(wording.percent(share) for share in shares),
                wording.percent(time.overlap) if time.communication_ns else "-",
                wording.percent(late.last_in / late.judged) if late.judged else "-",
                wording.seconds(late.others_waited_ns),
                wording.percent(late.others_waited_ns / span_ns),
                wording.percent(found.path.others_stood_ns[time.rank] / span_ns) if not found.path.doubt else "-",
            )

    heads = ("rank", "host", "", *charts.PARTS, "hidden", "last in", "others waited", "of the span", "stood still")
    return (
        f"<h2>Where the time of each rank's main thread went</h2>{charts.legend()}{_table(heads, rows())}"
        '<p class="note">Waiting: until the last rank has called. Exposed communication: in a wait after that. '
        "Message: in a wait for one. Hidden: the part of the communication during which the thread computed. "
        "Others waited: for this rank's calls, in the mean over the other ranks. Stood still: how long they did while "
        "this rank computed on the critical path, of the span.</p>"
    )


def _links(found: Analysis) -> str:
    if not found.links:
        return ""

    def rows() -> Iterator[Sequence[str]]:
        for link in found.links:
            yield (
                escape(wording.printable(link.from_host, 24)),
                escape(wording.printable(link.to_host, 24)),
                wording.nbytes(link.nbytes),
                wording.percent(link.busy_share),
                wording.rate(link.busy_rate) if link.busy_s > 0 else "-",
                "slow" if link.is_slow else "",
            )

    return (
        f"<h2>Links between hosts</h2>{_table(('from', 'to', 'bytes', 'busy', 'meanwhile', ''), rows())}"
        '<p class="note">Busy: the network did not take all bytes yet. Slow: the link held up the others.</p>'
    )


def _pictures(found: Analysis) -> str:
    shown = "".join(f"<h3>{escape(window.title)}</h3>{picture(found, window)}" for window in windows(found))
    return (
        f"<h2>Timeline</h2>{charts.legend(('moving', 'operation under way'), ('last', 'the last rank calls'))}"
        '<p class="note">Each row is a rank: what its main thread did, and below it the operations under way. The line '
        f"across the rows is the critical path.</p>{shown}"
    )


def _steps(found: Analysis) -> str:
    steps = found.steps
    if steps is None:
        return ""

    def rows() -> Iterator[Sequence[str]]:
        for step in steps.slowest:
            is_late = step.late_rank >= 0
            yield (
                str(step.number),
                f"{step.begin_ns / 1e9:.3f} s",
                wording.seconds(step.ns),
                f"rank {step.late_rank}" if is_late else "no rank stands out",
                wording.seconds(step.others_waited_ns) if is_late else "-",
            )

    p50, p99 = (wording.seconds(steps.quantile_ns(share)) for share in (0.5, 0.99))
    return (
        f"<h2>{len(steps.lengths_ns)} steps</h2><p>A step lasts from the last call of {escape(marker(found))} to "
        f"the next one: p50 {p50}, p99 {p99}.</p>"
        f"{charts.histogram(steps.lengths_ns)}<h3>The slowest</h3>"
        f"{_table(('step', 'begins at', 'took', 'late', 'the others waited for it'), rows())}"
    )


def _path(found: Analysis) -> str:
    path, job = found.path, found.job
    bars = [(f"computing of rank {rank}", "computing", ns) for rank, ns in path.computing_ns.items()][:MOST_BARS]
    names = path.communication_ns.items()
    bars += [(wording.label(job.kinds[kind], job.names[name]), "exposed", ns) for (kind, name), ns in names][:MOST_BARS]
    bars += [("waits for messages", "message", path.message_ns)] if path.message_ns else []
    unsure = f" It cannot be relied on: {path.doubt}." if path.doubt else ""
    return (
        f"<h2>Critical path</h2><p>What the end of the last operation came after, step by step back to the begin: "
        f"{wording.seconds(path.span_ns)}.{unsure}</p>{charts.bars(bars, max(path.span_ns, 1))}"
    )


def _operations(found: Analysis) -> str:
    def rows() -> Iterator[Sequence[str]]:
        for row in found.table:
            yield (
                escape(wording.label(found.job.kinds[row.kind], found.job.names[row.name])),
                str(row.operations),
                wording.nbytes(row.nbytes),
                *(wording.seconds(ns) for ns in (row.time_ns, row.p50_ns, row.p99_ns, row.max_ns)),
                "GPU" if row.on_gpu else "-" if row.busbw_GBps is None else f"{row.busbw_GBps:.2f}",
            )

    heads = ("operation", "count", "bytes", "time", "p50", "p99", "max", "busbw GB/s")
    return (
        f"<h2>Operations that were longest under way</h2>{_table(heads, rows())}"
        '<p class="note">Times are from start to end on a rank, those of GPU memory until the work was issued. Bus '
        "bandwidth: the median of operations of 1 MiB and more.</p>"
    )
