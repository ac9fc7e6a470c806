"""What `ringreduce tune` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ringreduce.plan import Plan, layout
from ringreduce.tuning.choosing import Choice
from ringreduce.tuning.costs import SIZES, Costs
from ringreduce.tuning.reduction import Reduction

AT_NBYTES = SIZES[1]


def head(facts: dict[str, Any], ranks: Sequence[int]) -> str:
    """Where this is."""
    return (
        f"# ringreduce {facts['ringreduce']} tune: {layout(ranks)}\n"
        f"# {facts['cpu']}, {facts['cores_online']} cores; Linux {facts['kernel']}; {facts['isa']}"
    )


def costs_text(costs: Costs, is_mpi: bool) -> str:
    """The parts. is_mpi: between hosts."""
    lines = []
    if costs.host is not None:
        host = costs.host
        times = f"{_us(host.news_s)} us; a barrier {_us(host.barrier_s)}; 8 bytes by the log {_us(host.logged_s)}"
        lines.append(f"from rank to rank        {times}")
        for name, curve in (("fold", host.fold), ("copy", host.gather), ("stage", host.stage)):
            rates = ", ".join(f"{nbytes / curve(nbytes) * 1e-9:.3g} at {size(nbytes)}" for nbytes in SIZES)
            lines.append(f"{name:<24} {rates} (GB/s, of each rank's bytes)")
    if len(costs.ranks) > 1:
        lines.append(f"barrier of all hosts     {_us(costs.barrier_s)} us")
    if costs.within is not None:
        rates = ", ".join(f"{_us(costs.within(nbytes))} us for {size(nbytes)}" for nbytes in SIZES)
        lines.append(f"all-reduce within hosts  {rates}")
    if costs.link is not None:
        lines.append(
            f"slowest link             {costs.link.nbytes_per_s * 1e-6:.4g} MB/s, {_us(costs.link.one_way_s)} us"
        )
    elif len(costs.ranks) > 1:
        why = (
            "the hosts are connected by MPI" if is_mpi else "a host does not reach the next one, or has no port for it"
        )
        lines.append(f"links                    not measured: {why}")
    return "\n".join(lines or ["one rank alone: no parts to measure"])


def choices_text(choices: Sequence[Choice]) -> str:
    """The sizes."""
    lines = [f"{'size':<14}{'default':>10}{'chosen':>10}   faster than the default"]
    for one in choices:
        gain = f"{one.gain:.2f}x at {size(one.at_nbytes)}" if one.gain is not None else "-"
        lines.append(f"{one.name:<14}{size(one.default):>10}{size(one.chosen):>10}   {gain}")
    return "\n".join(lines)


def reductions_text(reductions: Sequence[Reduction]) -> str:
    """Predicted against measured, an all-reduce a line."""
    head = f"{'all-reduce':>12}  {'memory':<12}{'algorithm':<20}{'predicted':>12}{'measured':>12}{'ratio':>8}   (us)"
    return f"{head}\n{rows_text(reductions)}"


def rows_text(reductions: Sequence[Reduction]) -> str:
    """The same without the column's names."""
    lines = []
    for one in reductions:
        predicted = _us(one.predicted_us * 1e-6) if one.predicted_us is not None else "-"
        ratio = f"{one.measured_us / one.predicted_us:.2f}" if one.predicted_us else "-"
        lines.append(
            f"{size(one.nbytes):>12}  {one.memory:<12}{one.algorithm:<20}{predicted:>12}"
            f"{_us(one.measured_us * 1e-6):>12}{ratio:>8}"
        )
    return "\n".join(lines)


def tail(plan: Plan, seconds: float, path: str | None) -> str:
    """What it took, and what to do with it."""
    took = f"# measured for {seconds:.1f} s; plan {plan.hash}"
    if path is None:
        return f"{took}, which -o FILE writes"
    copied = "; copy it to all hosts" if len(plan.ranks) > 1 else ""
    return f"{took} written to {path}\n# use: RINGREDUCE_PLAN={path}, on all ranks{copied}"


def size(nbytes: int) -> str:
    """Bytes as in the options of bench.

    >>> size(8), size(4096), size(1 << 20)
    ('8', '4K', '1M')
    """
    for unit, text in ((1 << 20, "M"), (1 << 10, "K")):
        if nbytes >= unit and nbytes % unit == 0:
            return f"{nbytes // unit}{text}"
    return str(nbytes)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g}" if seconds < 1e-3 else f"{seconds * 1e6:.0f}"
