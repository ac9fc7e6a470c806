"""Small pictures of the page: stacked shares, a histogram, bars. Their colours are classes of the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from ringreduce.timeline import wording

PARTS = ("computing", "waiting", "exposed", "message")
"""Of a thread's time, as classes of the style."""
_MEANING = {
    "exposed": "exposed communication",
    "message": "waiting for a message",
    "waiting": "waiting for other ranks",
}
BINS = 48


def legend(*more: tuple[str, str]) -> str:
    """The colours of PARTS, and of more: (class, meaning)."""
    every = [*((part, _MEANING.get(part, part)) for part in PARTS), *more]
    return '<p class="legend">' + "".join(f'<span><i class="{name}"></i>{text}</span>' for name, text in every) + "</p>"


def stacked(shares: Sequence[float]) -> str:
    """One bar of PARTS; shares add up to 1."""
    rects, at = [], 0.0
    for part, share in zip(PARTS, shares, strict=True):
        if share > 0:
            title = f"{_MEANING.get(part, part)}: {wording.percent(share)}"
            place = f'x="{200 * at:.2f}" width="{200 * share:.2f}" height="14"'
            rects.append(f'<rect class="{part}" {place}><title>{title}</title></rect>')
        at += share
    return f'<svg class="stacked" width="200" height="14" viewBox="0 0 200 14" role="img">{"".join(rects)}</svg>'


def histogram(lengths_ns: np.ndarray) -> str:
    """Of step times; its scale is logarithmic where they differ much."""
    least, most = float(max(lengths_ns.min(), 1)), float(max(lengths_ns.max(), 2))
    is_wide = most > 4 * float(np.median(lengths_ns))
    edges = np.geomspace(least, most, BINS + 1) if is_wide else np.linspace(least, most, BINS + 1)
    edges[0], edges[-1] = 0, max(most, least) + 1  # rounding must not lose the ends
    counts, _ = np.histogram(lengths_ns, edges)
    highest = max(int(counts.max()), 1)
    bars = []
    for index, count in enumerate(counts.tolist()):
        if count:
            height = max(100 * count / highest, 1.5)
            between = f"{wording.seconds(edges[index] if index else least)} to {wording.seconds(edges[index + 1])}"
            bars.append(
                f'<rect class="exposed" x="{10 * index}" y="{100 - height:.1f}" width="9" height="{height:.1f}">'
                f"<title>{wording.counted(count, 'step')}, {between}</title></rect>"
            )
    middle = np.sqrt(least * most) if is_wide else (least + most) / 2
    labels = "".join(f"<span>{wording.seconds(ns)}</span>" for ns in (least, middle, most))
    note = " (logarithmic scale)" if is_wide else ""
    return (
        f'<div class="histogram"><svg viewBox="0 0 {10 * BINS} 100" preserveAspectRatio="none" role="img">'
        f"<title>Steps by their time{note}</title>{''.join(bars)}</svg><div>{labels}</div></div>"
    )


def bars(rows: Sequence[tuple[str, str, int]], whole_ns: int) -> str:
    """Rows of (label, class, ns), a bar each as long as its share of the whole."""
    lines = "".join(
        f"<tr><td>{escape(label)}</td><td>{wording.percent(ns / whole_ns)}</td><td>{wording.seconds(ns)}</td>"
        f'<td><svg width="300" height="14" viewBox="0 0 300 14" role="img"><rect class="{name}" height="14" '
        f'width="{300 * min(ns / whole_ns, 1):.2f}"><title>{escape(label)}</title></rect></svg></td></tr>'
        for label, name, ns in rows
    )
    return f'<div class="table"><table class="bars"><tbody>{lines}</tbody></table></div>'
