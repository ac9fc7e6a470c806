"""From what the jobs' processes said to the figures of the table.

Ratios and differences are taken between jobs of the same round, which saw the same machine; a figure is the median
over the rounds. Parts of a median step need not add up to it exactly. Everything here is arithmetic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringreduce.bench.train import curves
from ringreduce.bench.train.job import Outcome
from ringreduce.bench.train.modes.independent import Independent
from ringreduce.bench.train.modes.single import Single, SingleAll

Z_95 = 1.96  # standard deviations on either side that hold 95 % of a normal distribution


@dataclass(frozen=True)
class Cell:
    """One mode in one round. All figures are None, and losses empty, unless status is "ok"."""

    round: int
    status: str
    seconds: float
    """Of the whole job, starting of processes included."""
    samples_per_s: float | None = None
    step_ms: float | None = None
    peak_memory_MiB: float | None = None
    """Resident, summed over the processes: what they share counts once for each."""
    losses: list[float] = field(default_factory=list)
    """Before each checked step and after the last."""
    rank_rates: list[float] = field(default_factory=list)
    """Samples/s of every process in every window."""
    threads: list[int] = field(default_factory=list)
    """Of every process."""
    step_nbytes: float | None = None
    """What a process hands over to collectives in a step: the mean of all processes and steps."""
    step_wire_nbytes: float | None = None
    """What a process writes to the network in a step; 0 on one host."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the first step, loss of the global batches since the last entry)."""
    output: str = ""
    """The end of what a job printed that went wrong."""


@dataclass(frozen=True)
class Step:
    """Milliseconds of one step. Exposed communication is what a step takes longer than one of independent ranks."""

    total: float
    compute: float | None
    exposed: float | None


@dataclass(frozen=True)
class Row:
    """One mode over all rounds. status is the worst of its rounds; figures are of those that are ok."""

    mode: str
    processes: int
    threads: int | None
    """Of the process that has most."""
    status: str
    samples_per_s: float | None
    to_single: float | None
    efficiency: float | None
    """Samples/s over (threads of all processes x single)."""
    fraction_of_bound: float | None
    step_ms: Step | None
    rank_rate: tuple[float, float] | None
    """Samples/s of one process: mean over processes, windows and rounds, and 1.96 standard deviations."""
    peak_memory_MiB: float | None
    step_nbytes: float | None
    """See Cell."""
    step_wire_nbytes: float | None
    rounds: list[Cell]

    @property
    def went_well(self) -> bool:
        """Whether every round was ok, and no loss was another thing than a number."""
        return self.status == "ok" and all(math.isfinite(loss) for cell in self.rounds for _, loss in cell.curve)


def cell(number: int, outcome: Outcome) -> Cell:
    """The figures of one job."""
    if outcome.status != "ok":
        return Cell(number, outcome.status, outcome.seconds, output=outcome.output)
    ranks = outcome.ranks
    rates = [[window["samples"] / window["seconds"] for window in rank["windows"]] for rank in ranks]
    together = sum(statistics.fmean(each) for each in rates)
    per_step = sum(rank["windows"][0]["samples"] / rank["windows"][0]["steps"] for rank in ranks)
    return Cell(
        round=number,
        status="ok",
        seconds=outcome.seconds,
        samples_per_s=together,
        step_ms=per_step / together * 1e3,
        peak_memory_MiB=sum(rank["peak_memory_KiB"] for rank in ranks) / 1024,
        losses=[sum(parts) for parts in zip(*(rank["losses"] for rank in ranks), strict=True)],
        rank_rates=[rate for each in rates for rate in each],
        threads=[rank["threads"] for rank in ranks],
        step_nbytes=_sent(ranks, "nbytes"),
        step_wire_nbytes=_sent(ranks, "wire_nbytes"),
        curve=curves.together([rank["curve"] for rank in ranks]),
    )


def _sent(ranks: Sequence[Mapping[str, Any]], counter: str) -> float | None:
    if any(rank["step_sent"] is None for rank in ranks):
        return None
    return statistics.fmean(rank["step_sent"][counter] for rank in ranks)


def rows(cells: Mapping[str, Sequence[Cell]], processes: Mapping[str, int]) -> list[Row]:
    """One row per mode.

    Args:
        cells: every mode's, by round.
        processes: how many every mode has.
    """
    return [_row(mode, cells, processes[mode]) for mode in cells]


def _row(mode: str, cells: Mapping[str, Sequence[Cell]], processes: int) -> Row:
    mine = cells[mode]
    good = [each for each in mine if each.status == "ok"]
    single = cells.get(Single.name, ())
    bound = cells[Independent.name]
    to_single = _paired(mine, single, _ratio)
    distributed = mode not in (Single.name, SingleAll.name)
    threads = good[0].threads if good else []
    rates = [rate for each in good for rate in each.rank_rates]
    total = _median([each.step_ms for each in good])
    step = None
    if total is not None:
        compute = _median([each.step_ms for each in bound]) if distributed else None
        exposed = _paired(mine, bound, _longer) if distributed else None
        step = Step(total, compute, exposed)
    return Row(
        mode=mode,
        processes=processes,
        threads=max(threads, default=None),
        status=next((each.status for each in mine if each.status != "ok"), "ok"),
        samples_per_s=_median([each.samples_per_s for each in good]),
        to_single=to_single,
        efficiency=None if to_single is None else to_single / sum(threads),
        fraction_of_bound=_paired(mine, bound, _ratio) if distributed else None,
        step_ms=step,
        rank_rate=(statistics.fmean(rates), Z_95 * statistics.pstdev(rates)) if rates else None,
        peak_memory_MiB=max((each.peak_memory_MiB or 0.0 for each in good), default=None),
        step_nbytes=_median([each.step_nbytes for each in good]),
        step_wire_nbytes=_median([each.step_wire_nbytes for each in good]),
        rounds=list(mine),
    )


def _ratio(ours: Cell, theirs: Cell) -> float:
    assert ours.samples_per_s is not None
    assert theirs.samples_per_s is not None
    return ours.samples_per_s / theirs.samples_per_s


def _longer(ours: Cell, theirs: Cell) -> float:
    assert ours.step_ms is not None
    assert theirs.step_ms is not None
    return ours.step_ms - theirs.step_ms


def _paired(ours: Sequence[Cell], theirs: Sequence[Cell], compare: Callable[[Cell, Cell], float]) -> float | None:
    """The median over the rounds in which both are ok; None where there is none."""
    by_round = {each.round: each for each in theirs if each.status == "ok"}
    pairs = [(each, by_round[each.round]) for each in ours if each.status == "ok" and each.round in by_round]
    return _median([compare(*pair) for pair in pairs])


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
