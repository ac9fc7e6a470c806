"""A picture of a stretch of time, a row for each rank: SVG that takes its colours from the page's style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ringreduce.timeline import wording
from ringreduce.timeline.analysis.critical_path import COMPUTING
from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.analysis.thread_time import JOIN
from ringreduce.timeline.drawing.slices import EXPOSED, FINEST, MESSAGE, MOVING, WAITING, Lane, Window, lanes

MOST_SLICES = 50000
MOST_TITLES = 4000
"""So many of the slices, the longest, say what they are when the mouse is over them."""
MOST_MARKS = 1000
MOST_CORNERS = 4000
WIDTH = 1000
WHOLE_OPERATIONS = 200
"""A job of so few is shown whole; of a longer one without steps, so many in its middle."""
SCALES = ((16, (16, 7, 7)), (64, (8, 3, 3)), (1 << 15, (4, 2, 1)))
"""For so many ranks: the height in pixels of the thread, of communication below it, and of the gap."""


def windows(found: Analysis) -> list[Window]:
    """What is worth a picture."""
    operations, steps = found.job.operations, found.steps
    if len(operations) <= WHOLE_OPERATIONS:
        return [Window("The whole timeline", 0, max(found.job.span_ns, 1))] if len(operations) else []
    if steps is None:
        middle = len(operations) // 2
        shown = operations[middle - WHOLE_OPERATIONS // 2 : middle + WHOLE_OPERATIONS // 2]
        begin_ns, end_ns = int(shown["first_called_ns"].min()), int(shown["ended_ns"].max())
        end_ns = max(end_ns, begin_ns + 1)
        return [Window(f"{WHOLE_OPERATIONS} operations in the middle of the timeline", begin_ns, end_ns)]
    slowest, lengths = steps.slowest[0].number, steps.lengths_ns
    median = int(np.argsort(lengths, kind="stable")[len(lengths) // 2])
    named = [("The slowest step", slowest), ("A step of median length", median)]
    return [
        Window(f"{title}: number {number}, {wording.seconds(lengths[number])}", *map(int, steps.bounds_ns[number:][:2]))
        for title, number in named
    ]


def picture(found: Analysis, window: Window) -> str:
    """HTML: the ranks' names, the time's scale, and the SVG, which the page's script can widen."""
    thread, moving, gap = next(heights for most, heights in SCALES if len(found.times) <= most)
    height = thread + moving + gap
    rows = "".join(_slices(found, window, (thread, moving, gap)))
    marks = "".join(_marks(found, window, thread, height))
    every = -(-14 // height)
    names = "".join(
        f'<span style="top:{index * height}px">{time.rank}</span>'
        for index, time in enumerate(found.times)
        if index % every == 0
    )
    return (
        f'<div class="picture"><div class="names" style="height:{height * len(found.times)}px">{names}</div>'
        f'<div class="scroll"><div class="wide"><svg viewBox="0 0 {WIDTH} {height * len(found.times)}" '
        f'height="{height * len(found.times)}" preserveAspectRatio="none" role="img">'
        f"<title>{escape(window.title)}</title>{rows}{_path(found, window, thread, height)}{marks}</svg>"
        f'<div class="scale">{"".join(_ticks(window))}</div></div></div></div>'
    )


def _x(window: Window, ns: float) -> str:
    return f"{round(WIDTH * (float(ns) - window.begin_ns) / (window.end_ns - window.begin_ns), 2):g}"


def _width(window: Window, ns: float) -> str:
    return _x(window, window.begin_ns + ns)


def _slices(found: Analysis, window: Window, heights: tuple[int, int, int]) -> Iterator[str]:
    thread, moving, _ = heights
    for index, time in enumerate(found.times):
        begin_ns = max(time.begin_ns, window.begin_ns)
        end_ns = min(time.begin_ns + time.span_ns, window.end_ns)
        if end_ns > begin_ns:
            yield (
                f'<rect class="computing" x="{_x(window, begin_ns)}" y="{index * sum(heights)}" height="{thread}" '
                f'width="{_width(window, end_ns - begin_ns)}"><title>rank {time.rank} computes</title></rect>'
            )
    every = lanes(found, window, MOST_SLICES)
    for lane, is_titled in zip(every, _titled(every), strict=True):
        top = lane.rank * sum(heights) + (thread if lane.sort == MOVING else 0)
        height = moving if lane.sort == MOVING else thread
        if len(shorter := lane.slices[~is_titled]):
            y = f"{top + height / 2:g}"
            scale = WIDTH / (window.end_ns - window.begin_ns)
            begins = np.round(scale * (shorter["begin_ns"] - window.begin_ns), 2).tolist()
            lengths = np.round(scale * (shorter["end_ns"] - shorter["begin_ns"]), 2).tolist()
            lines = "".join(f"M{x:g} {y}h{length:g}" for x, length in zip(begins, lengths, strict=True))
            yield f'<path class="line {lane.sort}" stroke-width="{height}" d="{lines}"></path>'
        for piece in lane.slices[is_titled]:
            yield (
                f'<rect class="{lane.sort}" x="{_x(window, piece["begin_ns"])}" y="{top}" height="{height}" '
                f'width="{_width(window, piece["end_ns"] - piece["begin_ns"])}">'
                f"<title>{escape(_title(found, lane, piece))}</title></rect>"
            )


def _titled(every: Sequence[Lane]) -> list[np.ndarray]:
    """For each lane, which of its slices are among the MOST_TITLES longest."""
    lengths = np.concatenate([lane.slices["end_ns"] - lane.slices["begin_ns"] for lane in every])
    found = np.zeros(len(lengths), bool)
    found[np.argsort(-lengths, kind="stable")[:MOST_TITLES]] = True
    return np.split(found, np.cumsum([len(lane.slices) for lane in every])[:-1])


def _title(found: Analysis, lane: Lane, piece: np.void) -> str:
    job, rank = found.job, found.times[lane.rank].rank
    took = wording.seconds(piece["end_ns"] - piece["begin_ns"])
    more = f", and {piece['count'] - 1} more" if piece["count"] > 1 else ""
    if lane.sort == MESSAGE:
        return f"rank {rank} waits {took} for a message{more}"
    if piece["operation"] == JOIN:
        return f"rank {rank} waits {took} in join(){more}"
    what = wording.operation(job, piece["operation"])
    if lane.sort == WAITING:
        last = job.operations["last_rank"][piece["operation"]]
        return f"rank {rank} waits {took} for rank {last} to call {what}{more}"
    if lane.sort == EXPOSED:
        return f"rank {rank} stands still {took} for {what}{more}"
    row = job.rows[piece["row"]]
    algorithm = wording.printable(job.algorithms[row["algorithm"]], 20)
    return f"rank {rank}: {what}, {wording.nbytes(row['nbytes'])}{algorithm and ', ' + algorithm}, {took}{more}"


def _marks(found: Analysis, window: Window, thread: int, height: int) -> Iterator[str]:
    """A line where the last rank calls; of several close together, the one that others waited for the longest."""
    operations, waited = found.job.operations, found.lateness.waited_ns
    first, after = np.searchsorted(operations["complete_ns"], (window.begin_ns, window.end_ns + 1))
    chosen = first + np.flatnonzero(found.lateness.names_last[first:after])
    cells = FINEST
    while True:
        at = (operations["complete_ns"][chosen] - window.begin_ns) * cells // (window.end_ns - window.begin_ns)
        place = operations["last_rank"][chosen].astype(np.int64) * (cells + 1) + at
        if cells == 1 or len(np.unique(place)) <= MOST_MARKS:
            break
        cells //= 2
    order = np.lexsort((-waited[chosen], place))
    best = chosen[order[np.flatnonzero(np.diff(place[order], prepend=-1))]]
    index_of = {time.rank: index for index, time in enumerate(found.times)}
    for operation in best.tolist():
        row = operations[operation]
        what = wording.operation(found.job, operation)
        cost = wording.seconds(waited[operation] / max(row["expected"] - 1, 1))
        title = f"rank {row['last_rank']} is the last to call {what}; the others have waited {cost} for it"
        yield (
            f'<path class="last" d="M{_x(window, row["complete_ns"])} {index_of[int(row["last_rank"])] * height}'
            f'v{thread}"><title>{escape(title)}</title></path>'
        )


def _path(found: Analysis, window: Window, thread: int, height: int) -> str:
    segments = found.path.segments
    segments = segments[(segments["end_ns"] > window.begin_ns) & (segments["begin_ns"] < window.end_ns)]
    if found.path.doubt or len(segments) > MOST_CORNERS:
        return ""
    index_of = {time.rank: index for index, time in enumerate(found.times)}
    corners: list[str] = []
    for segment in segments:
        y = index_of[int(segment["rank"])] * height + thread / 2
        if segment["operation"] == COMPUTING or not corners:
            corners.append(f"{_x(window, max(segment['begin_ns'], window.begin_ns))} {y:g}")
        corners.append(f"{_x(window, min(segment['end_ns'], window.end_ns))} {y:g}")
    return f'<path class="path" d="M{" L".join(corners)}"><title>the critical path</title></path>' if corners else ""


def _ticks(window: Window) -> Iterator[str]:
    span_ns = window.end_ns - window.begin_ns
    size = 10.0 ** np.floor(np.log10(span_ns / 4))
    size = next(size * factor for factor in (5, 2, 1) if span_ns / (size * factor) >= 4)
    for number in range(int(span_ns / size) + 1):
        share = 100 * number * size / span_ns
        if share < 97:
            text = wording.seconds(number * size) if number else "0"
            yield f'<span style="left:{share:.3f}%">{text}</span>'
