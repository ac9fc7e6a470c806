"""A job as trace events in JSON, for ui.perfetto.dev and chrome://tracing: one process for each rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ringreduce.timeline.export.labels import NO_TEXT, REDUCTIONS, flag_labels, group_labels, process_label
from ringreduce.timeline.export.layout import Counter, Layer, Layout, layout
from ringreduce.timeline.export.text_rows import Texts, joined, thousandths, whole
from ringreduce.timeline.job import Job
from ringreduce.timeline.threads import in_order
from ringreduce.timeline.whole_file import whole_file

BATCH = 5_000  # events that are text at one time: the arrays stay in a core's second cache
Columns: TypeAlias = tuple["bytes | np.ndarray", ...]
_COUNTER = '{"ph":"C","pid":%d,"name":%s,"ts":%%d.%%03d,"args":{%s:%%.6g}}'


def write(job: Job, path: Path) -> None:
    """Writes the file. Times are in us with three decimals, whole ns that is, since the job's time 0.

    Raises InvalidArgumentError where it cannot be written.
    """
    shown = layout(job)
    with whole_file(path) as file:
        file.write(f'{{"displayTimeUnit":"ns",\n"baseTimeNanoseconds":{job.base_realtime_ns},\n'.encode())
        file.write(f'"otherData":{json.dumps(facts(job))},\n"traceEvents":[\n'.encode())
        file.write(",\n".join(_metadata(job, shown)).encode())
        for events in in_order(_events(job, shown)):
            file.write(events)
        file.write(b"\n]}\n")


def facts(job: Job) -> dict[str, Any]:
    """What is true of the whole trace: texts and numbers."""
    return {
        "program": job.files[0].program,
        "ranks": job.files[0].size,
        "operations": len(job.operations),
        "span_ns": job.span_ns,
        "clocks": {
            f"rank {rank}": {"source": clock.source, "half_width_ns": clock.half_width_ns}
            for rank, clock in job.clocks.items()
        },
        "warnings": job.warnings,
    }


def _metadata(job: Job, shown: Layout) -> Iterator[str]:
    """Names of processes and threads. The counters' process has the pid after the last rank's, and stands first."""
    yield from _named("process", {"pid": job.files[0].size}, "all ranks", -1)
    for file in job.files:
        yield from _named("process", {"pid": file.rank}, process_label(file), file.rank)
    for index, track in enumerate(shown.tracks):
        name = track.name if track.lane == 0 else f"{track.name} ({track.lane + 1})"
        yield from _named("thread", {"pid": track.rank, "tid": index + 1}, name, index)


def _named(what: str, place: dict[str, int], name: str, order: int) -> Iterator[str]:
    yield json.dumps({"ph": "M", **place, "name": f"{what}_name", "args": {"name": name}})
    yield json.dumps({"ph": "M", **place, "name": f"{what}_sort_index", "args": {"sort_index": order}})


def _events(job: Job, shown: Layout) -> Iterator[Callable[[], bytes]]:
    """What makes the text of all events but the metadata, some at a time, each behind a comma."""
    places = Texts([f'"pid":{track.rank},"tid":{index + 1}' for index, track in enumerate(shown.tracks)])
    for layer in (shown.calls, shown.negotiation, shown.messages):
        category = layer.verb.strip() or "messages"
        texts = _quoted(layer.verb + label for label in shown.labels)
        for part in _parts(len(layer.track)):
            yield partial(_plain_slices, category, layer, part, places, texts)
    yield from _operations(job, shown, places)
    yield from _arrows(job, shown, places)
    for counter in shown.counters:
        for part in _parts(len(counter.at_ns)):
            yield partial(_counter, counter, part, job.files[0].size)


def _parts(count: int) -> Iterator[slice]:
    return (slice(begin, min(begin + BATCH, count)) for begin in range(0, count, BATCH))


def _length(part: slice) -> int:
    length: int = part.stop - part.start
    return length


def _slice(category: str, layer: Layer, part: slice, places: Texts, texts: Texts) -> Columns:
    """A slice's event without its end. Times: a float64 of us would lose ns after 100 days."""
    begin_ns = layer.begin_ns[part]
    return (
        f',\n{{"ph":"X","cat":"{category}",'.encode(),
        places.column(layer.track[part]),
        b',"ts":',
        thousandths(begin_ns),
        b',"dur":',
        thousandths(layer.end_ns[part] - begin_ns),
        b',"name":',
        texts.column(layer.label[part]),
    )


def _plain_slices(category: str, layer: Layer, part: slice, places: Texts, texts: Texts) -> bytes:
    return joined(_length(part), *_slice(category, layer, part, places, texts), b"}")


def _operations(job: Job, shown: Layout, places: Texts) -> Iterator[Callable[[], bytes]]:
    layer, operations = shown.operations, job.operations
    texts = _quoted(shown.labels)
    algorithms, dtypes, ops = (
        _quoted(name or NO_TEXT for name in names) for names in (job.algorithms, job.dtypes, [*job.ops, NO_TEXT])
    )
    flags, groups = _quoted(flag_labels()), _quoted(group_labels(job))
    op = np.where(np.isin(operations["kind"], _reductions(job)), operations["op"], len(job.ops))

    def text(part: slice) -> bytes:
        rows = job.rows[layer.row[part]]
        of_all = operations[rows["operation"]]
        return joined(
            _length(part),
            *_slice("operations", layer, part, places, texts),
            b',"args":{"bytes":',
            whole(rows["nbytes"]),
            b',"algorithm":',
            algorithms.column(rows["algorithm"]),
            b',"flags":',
            flags.column(rows["flags"]),
            b',"dtype":',
            dtypes.column(of_all["dtype"]),
            b',"op":',
            ops.column(op[rows["operation"]]),
            b',"group":',
            groups.column(of_all["group"]),
            b',"number":',
            whole(of_all["number"]),
            b',"last rank":',
            whole(of_all["last_rank"].astype(np.int64)),
            b"}}",
        )

    return (partial(text, part) for part in _parts(len(layer.track)))


def _quoted(texts: Iterable[str]) -> Texts:
    return Texts([json.dumps(text) for text in texts])


def _reductions(job: Job) -> list[int]:
    return [code for code, kind in enumerate(job.kinds) if kind in REDUCTIONS]


def _arrows(job: Job, shown: Layout, places: Texts) -> Iterator[Callable[[], bytes]]:
    called_on, started_on = np.zeros(len(job.rows), np.int64), np.zeros(len(job.rows), np.int64)
    called_on[shown.negotiation.row] = shown.negotiation.track
    started_on[shown.operations.row] = shown.operations.track

    def text(part: slice) -> bytes:
        source, target = shown.arrows.source_row[part], shown.arrows.target_row[part]
        number = whole(np.arange(part.start, part.stop))
        return joined(
            _length(part),
            b',\n{"ph":"s","cat":"late","name":"last call","id":',
            number,
            b",",
            places.column(called_on[source]),
            b',"ts":',
            thousandths(job.rows["called_ns"][source]),
            b'},\n{"ph":"f","bp":"e","cat":"late","name":"last call","id":',
            number,
            b",",
            places.column(started_on[target]),
            b',"ts":',
            thousandths(job.rows["started_ns"][target]),
            b"}",
        )

    return (partial(text, part) for part in _parts(len(shown.arrows.source_row)))


def _counter(counter: Counter, part: slice, pid: int) -> bytes:
    head = _COUNTER % (pid, json.dumps(counter.name).replace("%", "%%"), json.dumps(counter.unit))
    at_ns = counter.at_ns[part]
    us = at_ns // 1000
    columns = (us.tolist(), (at_ns - us * 1000).tolist(), counter.value[part].tolist())
    return "".join(map((",\n" + head).__mod__, zip(*columns, strict=True))).encode()
