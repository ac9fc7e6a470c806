"""Loss against time and samples/s, of all modes that train one model, in one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringreduce.bench.drawing import save
from ringreduce.bench.train import curves
from ringreduce.bench.train.figures import Row


def plot(path: Path, meta: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Writes the picture; the suffix says the format (png, svg, pdf). Losses are those of the first round.

    Raises InvalidArgumentError where it cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no display

    figure = Figure(figsize=(14, 5), layout="constrained")
    loss, rate = figure.subplots(1, 2, width_ratios=(2, 1))
    shown = curves.compared(rows)
    for row, curve in shown:
        smooth = curves.smoothed(curve)
        loss.plot(*zip(*smooth, strict=True), label=row.mode)
    loss.set(xlabel="seconds of training", ylabel="training loss", yscale="log")
    loss.legend()
    names = [row.mode for row, _ in shown]
    bars = rate.barh(names, [row.samples_per_s or 0.0 for row, _ in shown])
    rate.bar_label(bars, [_sent(row, bool(meta["hosts"])) for row, _ in shown], padding=4)
    rate.margins(x=0.55)  # room for the labels behind the bars
    rate.invert_yaxis()
    rate.set(xlabel="samples/s of all ranks; kB of a rank in a step")
    where = f", links of {meta['link']}" if meta["link"] else ""
    figure.suptitle(f"{meta['model']}, {meta['data']}, {meta['optimizer']}, {meta['ranks']} ranks{where}")
    save(figure, path)


def _sent(row: Row, is_over_network: bool) -> str:
    """Of a process in a step: what it writes to the network, or what it hands over to collectives."""
    nbytes = row.step_wire_nbytes if is_over_network else row.step_nbytes
    return "" if nbytes is None else f"{nbytes / 1e3:.1f} kB {'on the wire' if is_over_network else 'of tensors'}"
