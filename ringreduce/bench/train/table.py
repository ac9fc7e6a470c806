"""The plain table on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringreduce.bench.train import curves
from ringreduce.bench.train.figures import Row
from ringreduce.bench.train.losses import Verdict
from ringreduce.bench.train.modes import METHODS, MODES
from ringreduce.bench.train.modes.ringreduce import Ringreduce

HEADINGS = (
    ("mode", "procs x", "samples/s", "x", "scaling", "of the", "step", "compute", "exposed", "memory", "loss"),
    ("", "threads", "", "single", "efficiency", "bound", "ms", "ms", "ms", "MiB", ""),
)
MISSING = "-"


def render(
    meta: Mapping[str, Any],
    rows: Sequence[Row],
    absent: Mapping[str, str],
    judge: str | None,
    verdicts: Mapping[str, Verdict],
) -> str:
    """All of it, absent modes last, with notes below."""
    lines = [["# " + first if index == 0 else first for index, first in enumerate(heading)] for heading in HEADINGS]
    lines += [_cells(row, verdicts.get(row.mode)) for row in rows]
    lines += [["  " + mode, MISSING, "absent", *[MISSING] * 8] for mode in absent]
    aligned = _aligned(lines)
    notes = _notes(meta, rows, absent, judge, verdicts)
    return "\n".join([*_head(meta), *map(str.rstrip, aligned), *notes, *_losses_by_time(rows)])


def _cells(row: Row, verdict: Verdict | None) -> list[str]:
    step = row.step_ms
    # The loss of a mode that does not train as one process does is that of before the first step: no column for it.
    loss = MISSING if verdict is None or not MODES[row.mode].is_reduced else f"{verdict.loss:.4f}"
    return [
        "  " + row.mode,
        f"{row.processes} x {_number(row.threads, 0)}",
        row.status if row.samples_per_s is None else _number(row.samples_per_s, 1),
        _number(row.to_single, 2),
        _number(row.efficiency, 3),
        _number(row.fraction_of_bound, 3),
        *(_number(value, 1) for value in ((step.total, step.compute, step.exposed) if step else (None,) * 3)),
        _number(row.peak_memory_MiB, 0),
        loss if verdict is None or verdict.same else f"{loss} WRONG",
    ]


def _head(meta: Mapping[str, Any]) -> list[str]:
    hosts = f" on {','.join(meta['hosts'])}" if meta["hosts"] else ""
    if meta["link"]:
        hosts = f" on hosts of their own, made of this one, links of {meta['link']}"
    this = "this host: " if meta["hosts"] else ""
    each = " per rank" if meta["batch_per_rank"] else ""
    rounds = f"{meta['rounds']} round{'' if meta['rounds'] == 1 else 's'}"
    batch = f"batch {meta['batch_size']}{each}"
    ranks = f"{meta['ranks']} ranks{hosts}"
    what = f"training {meta['model']}, {meta['optimizer']}, {ranks}, {batch}, {meta['data']}, {rounds}"
    versions = ", ".join(f"{package} {version}" for package, version in meta["versions"].items())
    return [
        f"# ringreduce {meta['ringreduce']}: {what}, {versions}",
        f"# {this}{meta['cpu']}, {meta['cores_online']} cores; Linux {meta['kernel']}; {meta['isa']}; {_bound(meta)}",
        "#",
    ]


def _bound(meta: Mapping[str, Any]) -> str:
    """To what the ranks are bound, in words."""
    if meta["bind"] == "none":
        return "ranks are not bound"
    if meta["binding"] is None:
        return "ranks are bound to the cores of their hosts"
    return f"ranks on {' | '.join(','.join(map(str, cores)) for cores in meta['binding'])}"


def _notes(
    meta: Mapping[str, Any],
    rows: Sequence[Row],
    absent: Mapping[str, str],
    judge: str | None,
    verdicts: Mapping[str, Verdict],
) -> list[str]:
    notes = []
    if meta["batch_per_rank"]:
        for row in rows:
            if row.rank_rate:
                notes.append(f"{row.mode}: {row.rank_rate[0]:.2f} +- {row.rank_rate[1]:.2f} img/s per process")
    for row in rows:
        bad = [f"{each.status} in round {each.round + 1}" for each in row.rounds if each.status != "ok"]
        if bad:
            notes.append(f"{row.mode}: {', '.join(bad)}")
    for mode, verdict in verdicts.items():
        if not verdict.same:
            notes.append(f"{mode}: WRONG, its loss differs from that of {judge} by {verdict.difference:.2g} (relative)")
    others = [mode for mode, verdict in verdicts.items() if verdict.same and mode != judge]
    steps = f"{meta['check_steps']} step{'' if meta['check_steps'] == 1 else 's'}"
    within = f"as {judge}, within {meta['loss_tolerance']:g}"
    if judge == Ringreduce.name:
        notes.append(f"loss after {steps}: nobody to compare with; --vs single would do")
    elif reduced := [mode for mode in others if MODES[mode].is_reduced]:
        notes.append(f"loss after {steps}: {', '.join(reduced)} {within}")
    if unreduced := [mode for mode in others if not MODES[mode].is_reduced]:
        notes.append(f"loss before the first step: {', '.join(unreduced)} {within}")
    notes += [f"{mode}: absent, {why}" for mode, why in absent.items()]
    return ["#", *(f"# {note}" for note in notes)] if notes else []


def _losses_by_time(rows: Sequence[Row]) -> list[str]:
    """The second table, where a method is measured: what a step sends, and the loss after parts of the time."""
    shown = curves.compared(rows)
    if not any(row.mode in METHODS for row, _ in shown):
        return []
    least_s = min(curve[-1][0] for _, curve in shown)
    times = [least_s * quarter / 4 for quarter in range(1, 5)]
    lines = [["# mode", "kB/step", "kB/step", *("loss after" for _ in times)]]
    lines.append(["#", "tensors", "on wire", *(f"{seconds:.1f} s" for seconds in times)])
    for row, curve in shown:
        sent = [_number(nbytes and nbytes / 1e3, 2) for nbytes in (row.step_nbytes, row.step_wire_nbytes)]
        lines.append(["  " + row.mode, *sent, *(_number(curves.loss_at(curve, seconds), 4) for seconds in times)])
    return [
        "#",
        "# loss against time; kB/step: what a rank hands over to collectives, what it writes to the network",
        *_aligned(lines),
    ]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of equal width, the first one to the left."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(text.ljust(width) if index == 0 else text.rjust(width) for index, (text, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]


def _number(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:.{digits}f}"
