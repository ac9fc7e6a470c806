"""The record of `make gpu-check`: docs/results/DATE-GPU.json and .md, and the short table that ends the output."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

from gpus.parts import Outcome

Row: TypeAlias = dict[str, Any]

MIB = 1 << 20
WANTED = {"pack": 0.85, "unpack": 0.85, "ipc": 0.80, "staged": 0.85, "gloo": 30.0}
"""Fractions of the limit that are promised, from 16 MiB (kernels) and 64 MiB (paths) on; of gloo: times as fast."""


FIGURES = ("allreduce", "step", "limit", "copy", "pack", "unpack", "scale", "cast", "reduce")
"""What a row may be that has a time or a rate; others (probes, counts of right kernels) are shown otherwise."""


def read_rows(path: Path, part: str = "") -> list[Row]:
    """The JSON lines of a file, those before a torn one; other output between them is passed over.

    Args:
        part: whose they are; every row says so, that a later run of the part may replace them.
    """
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        if line.startswith("{"):
            try:
                rows.append({**json.loads(line), "part": part} if part else json.loads(line))
            except ValueError:
                break
    return rows


def with_limits(rows: Sequence[Row]) -> list[Row]:
    """The rows, those of all-reduces with their limit and the fraction of it, and the ratio to torch's Gloo.

    A path that reads and writes the GPU's memory once needs 2 n S bytes of it, n ranks on one GPU; a staged one needs
    n S bytes over the link each way, at the rate of the slower direction.
    """
    limits = {row["name"]: row["GBps"] for row in rows if row["what"] == "limit"}
    gloo = {(row["ranks"], row["nbytes"]): row["time_us"] for row in rows if row.get("library") == "gloo"}
    found = []
    for row in rows:
        row = dict(row)
        if row["what"] == "allreduce" and row["library"] == "ringreduce":
            nbytes = row["ranks"] * row["nbytes"]
            if row["path"] == "staged":
                rate = min(limits.get("to host", 0.0), limits.get("to device", 0.0))
            else:
                rate, nbytes = limits.get("copy", 0.0), 2 * nbytes
            row["GBps"] = nbytes / row["time_us"] * 1e-3
            row["fraction"] = row["GBps"] / rate if rate else None
            peer = gloo.get((row["ranks"], row["nbytes"]))
            row["times_gloo"] = peer / row["time_us"] if peer else None
        found.append(row)
    alone = {row["way"]: row["time_us"] for row in found if row["what"] == "step" and row["ranks"] == 1}
    for row in found:
        if row["what"] == "step":
            row["times_alone"] = row["time_us"] / alone[row["way"]] if row["way"] in alone else None
    return found


def table(outcomes: Sequence[Outcome], rows: Sequence[Row]) -> str:
    """The short table: how each part ended, and the figures that something is promised of."""
    lines = [f"{outcome.name:<20} {outcome.seconds:6.1f} s  {outcome.verdict}" for outcome in outcomes]
    probes = [row for row in rows if row["what"] == "probe"]
    lines += [f"probe {row['name']} FAILED: {row['answer']}"[:240] for row in probes if not row["good"]]
    if probes:
        lines.append(f"probes: {sum(bool(row['good']) for row in probes)} of {len(probes)} hold")
    lines += ["", f"{'figure':<44} {'size':>9} {'time':>11} {'GB/s':>9} {'of limit':>9} {'wrong':>6}"]
    lines += [_line(row) for row in rows if _is_shown(row)]
    lines += ["", *judgements(rows)]
    return "\n".join(lines)


def judgements(rows: Sequence[Row]) -> list[str]:
    """Each promise: the least that was measured, and whether it is kept."""
    found = []
    for name, wanted in WANTED.items():
        values = list(_promised(name, rows))
        unit = "x" if name == "gloo" else ""
        if not values:
            found.append(f"{name}: not measured (wanted {wanted:g}{unit})")
        else:
            least = min(values)
            verdict = "reached" if least >= wanted else "NOT reached"
            found.append(f"{name}: {least:.2f}{unit} at least, {wanted:g}{unit} wanted: {verdict}")
    waits = [name for row in rows if row["what"] == "step" for name in row.get("waits") or []]
    if any(row["what"] == "step" for row in rows):
        found.append(f"host waits in a steady step: {', '.join(sorted(set(waits))) or 'none'}")
    wrong = sum(row.get("wrong") or 0 for row in rows)
    found.append(f"wrong elements: {wrong}")
    return found


def _promised(name: str, rows: Sequence[Row]) -> Iterable[float]:
    for row in rows:
        if name in ("pack", "unpack"):
            if row["what"] == name and row["nbytes"] >= 16 * MIB:
                yield row["fraction"]
        elif row["what"] == "allreduce" and row["nbytes"] >= 64 * MIB:
            value = row.get("times_gloo") if name == "gloo" else row.get("fraction")
            is_it = row.get("path") in ("ipc", "auto") if name == "gloo" else row.get("path") == name
            if is_it and value is not None:
                yield value


def _is_shown(row: Row) -> bool:
    if row["what"] == "allreduce":
        return row["nbytes"] in (8, 32 << 10, 2 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
    if row["what"] not in FIGURES:
        return False
    if row["what"] in ("pack", "unpack", "cast", "reduce", "scale", "copy"):
        return row["list"] != "one" or row["nbytes"] in (16 * MIB, 256 * MIB)
    return True


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be looked at, in a few lines for each part that did not end well; [] when all did."""
    bad = [outcome for outcome in outcomes if outcome.status != 0]
    lines = []
    for outcome in bad:
        lines.append(f"{outcome.name}: {outcome.verdict}")
        lines += [f"    {line}" for line in outcome.digest(6 if len(bad) <= 4 else 3)]
    missing = [outcome for outcome in bad if outcome.late or outcome.note]
    if missing:
        words = ",".join(dict.fromkeys(outcome.word or outcome.name for outcome in missing))
        lines.append(f'not done: {", ".join(one.name for one in missing)}; go on with ARGS="--only {words}"')
    return lines


def _line(row: Row) -> str:
    if row["what"] == "allreduce":
        by = row["library"] if row["library"] != "ringreduce" else f"path {row['path']}"
        name = f"all-reduce, {row['ranks']} ranks, {by}"
    elif row["what"] == "step":
        name = f"step {row['model']}, {row['ranks']} ranks, {row['way']}"
    elif row["what"] == "limit":
        name = f"limit: {row['name']}"
    else:
        name = f"{row['what']} {row['list']}" + (f", {row['ranks']} inputs" if row["what"] == "reduce" else "")
    size = _size(row["nbytes"]) if "nbytes" in row else ""
    time = f"{row['time_us']:.1f} us" if "time_us" in row else ""
    rate = f"{row['GBps']:.1f}" if row.get("GBps") else ""
    of_limit = f"{row['fraction']:.2f}" if row.get("fraction") else ""
    if row.get("times_alone"):
        of_limit = f"{row['times_alone']:.2f}x"
    return f"{name:<44} {size:>9} {time:>11} {rate:>9} {of_limit:>9} {row.get('wrong', 0):>6}"


def markdown(record: Row, name: str) -> str:
    """The record as a page."""
    meta = record["meta"]
    heads = ["figure", "size", "us", "GB/s", "of the limit", "of Gloo's speed", "wrong"]
    lines = [
        f"# {name}",
        "",
        f"`make gpu-check` on {', '.join(meta['gpus']) or 'no GPU'}, {meta['date']}.",
        f"CUDA {meta['cuda']}, torch {meta['torch']}; docs/reference/benchmarks.md says how to read the figures.",
        "",
        "| part | verdict | s |",
        "|---|---|---|",
        *(f"| {part['name']} | {part['verdict']} | {part['seconds']:.1f} |" for part in record["parts"]),
        "",
        *(f"* {line}" for line in record["judgements"]),
        *(f"* {_calls(row)}" for row in record["results"] if row.get("calls")),
    ]
    probes = [row for row in record["results"] if row["what"] == "probe"]
    if probes:
        lines += ["", "| probe | holds | answer |", "|---|---|---|"]
        lines += [
            f"| {row['name']} | {'yes' if row['good'] else 'NO'} | {row['answer'].replace('|', '/')} |"
            for row in probes
        ]
    lines += ["", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in record["results"]:
        if row["what"] not in FIGURES:
            continue
        what = re.split(r"\s{2,}", _line(row).strip())[0]
        cells = [
            what,
            _size(row["nbytes"]) if "nbytes" in row else "",
            f"{row['time_us']:.2f}" if "time_us" in row else "",
            f"{row['GBps']:.1f}" if row.get("GBps") else "",
            f"{row['fraction']:.3f}" if row.get("fraction") else "",
            f"{row['times_gloo']:.1f}" if row.get("times_gloo") else "",
            str(row.get("wrong", 0)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _calls(row: Row) -> str:
    listed = ", ".join(f"{name} {count}" for name, count in sorted(row["calls"].items()))
    return f"CUDA calls of a steady step on {row['ranks']} ranks, by the profiler: {listed}"


def merged(before: Row, after: Row) -> Row:
    """A record with what an earlier one of the same GPU has of parts that the later one has not run."""
    names = {part["name"] for part in after["parts"]}
    parts = [part for part in before["parts"] if part["name"] not in names] + after["parts"]
    rows = [row for row in before["results"] if row.get("part") not in names] + after["results"]
    rows = with_limits(rows)
    return {**after, "parts": parts, "judgements": judgements(rows), "results": rows}


def make(meta: Row, outcomes: Sequence[Outcome], rows: Sequence[Row]) -> Row:
    """The whole record."""
    parts = [
        {
            "name": one.name,
            "verdict": one.verdict,
            "status": one.status,
            "seconds": round(one.seconds, 1),
            "output": one.output if one.status else "",
        }
        for one in outcomes
    ]
    return {"meta": meta, "parts": parts, "judgements": judgements(rows), "results": list(rows)}


def write(record: Row, folder: Path, today: date, copy_to: Path | None = None, add: bool = False) -> list[Path]:
    """Writes both files, and copies of them; returns the former. The name is the day's and the GPU's.

    Args:
        add: what a record of that name has of other parts is kept.
    """
    gpu = record["meta"]["gpus"][0] if record["meta"]["gpus"] else "no-gpu"
    stem = f"{today.isoformat()}-{re.sub(r'[^a-z0-9]+', '-', gpu.lower()).strip('-')}"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{stem}.json", folder / f"{stem}.md"]
    if add and files[0].exists():
        record = merged(json.loads(files[0].read_text(encoding="utf-8")), record)
    files[0].write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    files[1].write_text(markdown(record, stem), encoding="utf-8")
    for file in files if copy_to is not None else ():
        shutil.copy(file, copy_to)
    return files


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}" if nbytes % unit == 0 else f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} B"
