"""A job as trace events in JSON, for ui.perfetto.dev and chrome://tracing: one process for each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ringreduce.timeline.export.labels import NO_TEXT, REDUCTIONS, flag_labels, group_labels, process_label
from ringreduce.timeline.export.layout import Counter, Layer, Layout, Track, layout
from ringreduce.timeline.job import Job
from ringreduce.timeline.whole_file import whole_file

BATCH = 50_000  # events that are text at one time
_SLICE = '{"ph":"X","cat":"%s",%%s,"ts":%%d.%%03d,"dur":%%d.%%03d,"name":%%s}'
_OPERATION = (
    '{"ph":"X","cat":"operations",%s,"ts":%d.%03d,"dur":%d.%03d,"name":%s,'
    '"args":{"bytes":%d,"algorithm":%s,"flags":%s,%s}}'
)
_ARROW = (
    '{"ph":"s","cat":"late","name":"last call","id":%d,%s,"ts":%d.%03d},\n'
    '{"ph":"f","bp":"e","cat":"late","name":"last call","id":%d,%s,"ts":%d.%03d}'
)
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
        for lines in _events(job, shown):
            file.write((",\n" + ",\n".join(lines)).encode())
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


def _events(job: Job, shown: Layout) -> Iterator[list[str]]:
    """All events but the metadata, some at a time."""
    places = [_place(index, track) for index, track in enumerate(shown.tracks)]
    for layer in (shown.calls, shown.negotiation, shown.messages):
        template = _SLICE % (layer.verb.strip() or "messages")
        texts = [json.dumps(layer.verb + label) for label in shown.labels]
        for part in _parts(len(layer.track)):
            yield list(map(template.__mod__, zip(*_slices(layer, part, places, texts), strict=True)))
    yield from _operations(job, shown, places)
    yield from _arrows(job, shown, places)
    for counter in shown.counters:
        yield _counter(counter, job.files[0].size)


def _place(index: int, track: Track) -> str:
    return f'"pid":{track.rank},"tid":{index + 1}'


def _parts(count: int) -> Iterator[slice]:
    return (slice(begin, min(begin + BATCH, count)) for begin in range(0, count, BATCH))


def _slices(layer: Layer, part: slice, places: list[str], texts: list[str]) -> tuple[list[Any], ...]:
    """Place, begin in us and ns, length in us and ns, text."""
    begin_ns = layer.begin_ns[part]
    return (
        [places[track] for track in layer.track[part].tolist()],
        *_us(begin_ns),
        *_us(layer.end_ns[part] - begin_ns),
        [texts[label] for label in layer.label[part].tolist()],
    )


def _us(ns: np.ndarray) -> tuple[list[int], list[int]]:
    """Whole us, and ns of the next: a float64 of us would lose ns after 100 days, and is slower to write."""
    us = ns // 1000
    return us.tolist(), (ns - us * 1000).tolist()


def _operations(job: Job, shown: Layout, places: list[str]) -> Iterator[list[str]]:
    layer = shown.operations
    texts = [json.dumps(label) for label in shown.labels]
    algorithms = [json.dumps(name or NO_TEXT) for name in job.algorithms]
    flags = [json.dumps(label) for label in flag_labels()]
    for part in _parts(len(layer.track)):
        rows = job.rows[layer.row[part]]
        first, last = int(rows["operation"][0]), int(rows["operation"][-1])
        shared = _shared(job, slice(first, last + 1))
        columns = (
            rows["nbytes"].tolist(),
            [algorithms[code] for code in rows["algorithm"].tolist()],
            [flags[code] for code in rows["flags"].tolist()],
            [shared[index] for index in (rows["operation"] - first).tolist()],
        )
        yield list(map(_OPERATION.__mod__, zip(*_slices(layer, part, places, texts), *columns, strict=True)))


def _shared(job: Job, part: slice) -> list[str]:
    """What is the same on all ranks of each operation."""
    operations = job.operations[part]
    groups = [json.dumps(label) for label in group_labels(job)]
    ops = [json.dumps(op) for op in job.ops]
    types = [
        f'"dtype":{json.dumps(job.dtypes[dtype])},"op":{ops[op] if reduces else json.dumps(NO_TEXT)}'
        for dtype, op, reduces in zip(
            operations["dtype"].tolist(),
            operations["op"].tolist(),
            np.isin(operations["kind"], _reductions(job)).tolist(),
            strict=True,
        )
    ]
    columns = (operations[name].tolist() for name in ("group", "number", "last_rank"))
    return [
        f'{kind},"group":{groups[group]},"number":{number},"last rank":{last}'
        for kind, group, number, last in zip(types, *columns, strict=True)
    ]


def _reductions(job: Job) -> list[int]:
    return [code for code, kind in enumerate(job.kinds) if kind in REDUCTIONS]


def _arrows(job: Job, shown: Layout, places: list[str]) -> Iterator[list[str]]:
    called_on, started_on = np.zeros(len(job.rows), np.int64), np.zeros(len(job.rows), np.int64)
    called_on[shown.negotiation.row] = shown.negotiation.track
    started_on[shown.operations.row] = shown.operations.track
    for part in _parts(len(shown.arrows.source_row)):
        source, target = shown.arrows.source_row[part], shown.arrows.target_row[part]
        numbers = range(part.start, part.stop)
        columns = (
            [places[track] for track in called_on[source].tolist()],
            *_us(job.rows["called_ns"][source]),
            numbers,
            [places[track] for track in started_on[target].tolist()],
            *_us(job.rows["started_ns"][target]),
        )
        yield list(map(_ARROW.__mod__, zip(numbers, *columns, strict=True)))


def _counter(counter: Counter, pid: int) -> list[str]:
    template = _COUNTER % (pid, json.dumps(counter.name).replace("%", "%%"), json.dumps(counter.unit))
    return list(map(template.__mod__, zip(*_us(counter.at_ns), counter.value.tolist(), strict=True)))
