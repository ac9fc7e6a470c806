"""Runs every mode once per round; the order rotates, so that nobody is always first."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ringreduce.bench.train import figures, job
from ringreduce.bench.train.figures import Cell
from ringreduce.bench.train.modes import MODES
from ringreduce.bench.train.options import Options


def measure(options: Options, modes: Sequence[str], data: str) -> dict[str, list[Cell]]:
    """Every mode's cells, by round. What a job that went wrong printed goes to stderr."""
    cells: dict[str, list[Cell]] = {mode: [] for mode in modes}
    for number in range(options.rounds):
        turn = number % len(modes)
        for place, mode in enumerate([*modes[turn:], *modes[:turn]], 1):
            _progress(f"round {number + 1}/{options.rounds}, {place}/{len(modes)}: {mode}")
            outcome = job.run(MODES[mode], options, data)
            _progress("")
            if outcome.status != "ok":
                head = f"--- {mode}, round {number + 1}: {outcome.status} after {outcome.seconds:.1f} s"
                print(f"{head}\n{outcome.output}", file=sys.stderr, flush=True)
            cells[mode].append(figures.cell(number, outcome))
    return cells


def _progress(text: str) -> None:
    """Shows what is going on, in place, where somebody may be looking."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
