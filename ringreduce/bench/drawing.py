"""Pictures of a comparison: time, bus bandwidth and ratios over size, as one image or in a report of one file."""

from __future__ import annotations

import html as escape
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

from ringreduce.bench import comparison, versus_table
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.timeline.whole_file import check_writable, whole_file

OURS_STYLE = {"registered": "-", "private": "--"}


SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(option: str, path: str) -> None:
    """Said before anything is measured: whether there can be a picture in this file. option: of the command line.

    Raises:
        InvalidArgumentError: another format than png, svg and pdf, or a file that cannot be written.
        UnavailableError: matplotlib is not installed.
    """
    if Path(path).suffix not in SUFFIXES:
        raise InvalidArgumentError(f"{option} {path}: the file's name has to end in {', '.join(SUFFIXES)}")
    check_writable(Path(path))
    need_matplotlib(option)


def need_matplotlib(option: str) -> None:
    """Raises UnavailableError without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnavailableError(f"{option} needs matplotlib: pip install 'ringreduce[bench]'")


def plot(found: comparison.Document, path: Path) -> None:
    """Writes the picture. Raises InvalidArgumentError where it cannot be written."""
    save(_figure(found), path)


def save(figure: Any, path: Path) -> None:
    """Writes a figure of matplotlib; the suffix says the format (png, svg, pdf). Raises InvalidArgumentError."""
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix.removeprefix("."), dpi=120)


def html(found: comparison.Document, path: Path) -> None:
    """Writes a report that needs no other file: facts, picture, table, every figure as JSON.

    Raises InvalidArgumentError where it cannot be written.
    """
    picture = io.StringIO()
    _figure(found).savefig(picture, format="svg")
    svg = picture.getvalue()
    meta = found["meta"]
    facts = "".join(
        f"<tr><th>{escape.escape(key)}</th><td>{escape.escape(json.dumps(value))}</td></tr>"
        for key, value in meta.items()
    )
    title = f"ringreduce {meta['ringreduce']}: {meta['collective']}, {meta['ranks']} ranks"
    data = json.dumps(found).replace("</", "<\\/")  # or a string in it could end the element
    text = (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape.escape(title)}</title>"
        "<style>body{font:15px sans-serif;margin:2em;max-width:75em}pre{overflow:auto}"
        "th{text-align:left;padding-right:1em;font-weight:normal;color:#555}</style>"
        f"<h1>{escape.escape(title)}</h1>{svg[svg.index('<svg') :]}"
        f"<h2>Table</h2><pre>{escape.escape(versus_table.tail(found))}</pre>"
        f"<h2>Machine</h2><table>{facts}</table>"
        f"<script type='application/json' id='data'>{data}</script></html>\n"
    )
    with whole_file(path) as file:
        file.write(text.encode())


def _figure(found: comparison.Document) -> Any:
    from matplotlib.figure import Figure  # no backend, no display

    figure = Figure(figsize=(15, 5), layout="constrained")
    time, bandwidth, ratio = figure.subplots(1, 3)
    sizes = comparison.sizes(found)
    for competitor, level in comparison.competitors(found):
        rows = [row for size in sizes if (row := comparison.middle(found["results"], competitor, level, size))]
        if not rows:
            continue
        xs = [row["nbytes"] for row in rows]
        width = 2.5 if comparison.is_ours(competitor) else 1
        style: dict[str, Any] = {"linewidth": width, "linestyle": OURS_STYLE.get(competitor.split()[-1], "-")}
        style |= {"marker": "o" if level == "c" else "s", "markersize": 3}
        time.plot(xs, [row["time_us"]["p50"] for row in rows], label=f"{competitor} ({level})", **style)
        bandwidth.plot(xs, [row["busbw_GBps"] for row in rows], **style)
        limited = [row for row in rows if row["fraction_of_limit"]]
        if competitor == "ringreduce registered" and level == "c" and limited:
            xs = [row["nbytes"] for row in limited]
            style = {"color": "black", "linestyle": ":", "label": f"limit of the {what_limits(found['meta'])}"}
            time.plot(xs, [row["time_us"]["p50"] * row["fraction_of_limit"] for row in limited], **style)
            bandwidth.plot(xs, [row["busbw_GBps"] / row["fraction_of_limit"] for row in limited], **style)
            bandwidth.legend(fontsize=8)
    for ours, level in [one for one in comparison.competitors(found) if comparison.is_ours(one[0])]:
        best = [(size, r["median"]) for size in sizes if (r := comparison.best(found["ratios"], ours, level, size))]
        if best:
            ratio.plot(*zip(*best, strict=True), marker="o", markersize=3, label=f"{ours} ({level})")
    ratio.axhline(1, color="black", linewidth=0.5)
    for axes, title, unit in (
        (time, "time of a call", "us, p50"),
        (bandwidth, "bus bandwidth", "GB/s"),
        (ratio, "how much faster than the best peer", "x"),
    ):
        axes.set(xscale="log", yscale="log", title=title, xlabel="bytes", ylabel=unit)
        axes.grid(alpha=0.3)
    time.legend(fontsize=7)
    ratio.legend(fontsize=8)
    meta = found["meta"]
    where = f"{len(meta['hosts'])} hosts" if len(meta.get("hosts", ())) > 1 else f"{len(meta['cores'])} cores"
    figure.suptitle(f"{meta['collective']}, {meta['ranks']} ranks on {where}, {meta['cpu']}")
    return figure


def what_limits(meta: dict[str, Any]) -> str:
    """In a word."""
    return "links" if len(meta.get("hosts", ())) > 1 else "machine"
