"""`ringreduce bench --vs`: ours and the peers in turns, size by size, in one run.

A machine that others share changes from minute to minute, so only times taken next to each other are compared: in each
round everyone has a turn at each size, in an order that rotates, and a ratio is formed within a round. What is
reported are medians over the rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ringreduce.bench import comparison, drawing, machine, peers, report, terminal, versus_table
from ringreduce.bench.collectives import COLLECTIVES, SMALL_NBYTES
from ringreduce.bench.memory import without_room
from ringreduce.bench.options import DEFAULT_BIND, DEFAULT_RANKS
from ringreduce.bench.oracle import DTYPES
from ringreduce.bench.peers.cell import Cell, Outcome, Peer
from ringreduce.bench.peers.cell import run as run_cell
from ringreduce.bench.peers.ours import Ours
from ringreduce.bench.start import refuse_within_job
from ringreduce.errors import InvalidArgumentError
from ringreduce.exit_on_signal import exit_on_signal
from ringreduce.launch.command_line.host_options import hosts_text
from ringreduce.timeline.whole_file import check_writable

if TYPE_CHECKING:
    from ringreduce.bench.options import Options

GIVEN_UP = 2  # a competitor that has timed out so often gets no more turns


def run(options: Options) -> int:
    """Runs the comparison. Returns 0, or 1 when anybody's result was wrong or ours did not come.

    Raises:
        InvalidArgumentError: an unknown peer; a process that is a rank of a job, because each competitor has a job of
            its own and every rank of this one would start them all.
        InvalidArgumentError: also a file that cannot be written, or a size without room, said before anything is
            measured.
        UnavailableError: --plot or --html without matplotlib, likewise.
    """
    refuse_within_job("ringreduce bench --vs")
    report.check(options.json)
    if options.plot is not None:
        drawing.check_picture("ringreduce bench --plot", options.plot)
    if options.html is not None:
        drawing.need_matplotlib("ringreduce bench --html")
        check_writable(Path(options.html))
    here, absent = peers.find(options.vs)
    competitors = [*_ours(options, here), *here]
    ranks = options.ranks or DEFAULT_RANKS
    for level in _levels(options, here) if not options.hosts else ():
        if problem := without_room(replace(options, level=level, limit=level == "c"), ranks, ranks):
            raise InvalidArgumentError(problem)
    cores = tuple(machine.allowed_cores())
    meta = {
        **machine.facts(),
        "collective": options.collective,
        "dtype": options.dtype,
        "op": options.op if COLLECTIVES[options.collective].reduces else None,
        "ranks": ranks,
        "cores": cores,
        "bind": options.bind or DEFAULT_BIND,
        "hosts": [hosts_text([host]) for host in options.hosts],
        "rounds": options.rounds,
        "competitors": [competitor.name for competitor in competitors],
        "absent": {one.name: one.advice for one in absent},
    }
    terminal.show(versus_table.head(meta, absent))
    with exit_on_signal():  # the cell's job ends too
        outcomes = _measure(options, meta, competitors, ranks, cores)
    document = comparison.document({**meta, **machine.facts_after()}, outcomes)
    terminal.show(versus_table.tail(document))
    if options.json is not None:
        report.save(options.json, document)
    if options.plot is not None:
        drawing.plot(document, Path(options.plot))
    if options.html is not None:
        drawing.html(document, Path(options.html))
    wrong = sum(row["wrong"] or 0 for row in document["results"])
    ours = any(cell["status"] != "ok" for cell in document["cells"] if cell["competitor"].startswith("ringreduce"))
    return 1 if wrong or ours else 0


def cell(options: Options, competitor: Peer, nbytes: int, ranks: int, cores: tuple[int, ...], first: bool) -> Cell:
    """What a competitor measures at a size; the first round also checks every element."""
    collective = COLLECTIVES[options.collective]
    itemsize = np.dtype(DTYPES[options.dtype][0]).itemsize
    count = collective.count(nbytes, itemsize, ranks)
    one = Cell(
        collective=options.collective,
        nbytes=count * itemsize,
        count=count,
        dtype=options.dtype,
        op=options.op if collective.reduces else "sum",
        in_place=collective.is_in_place(options.in_place),
        ranks=ranks,
        cores=cores,
        iters=0,
        warmup=0,
        check=options.check and first,
        bind=options.bind or DEFAULT_BIND,
        hosts=tuple((host.name, host.slots) for host in options.hosts),
        ringrun=options.ringrun,
        is_paced=options.iters is None,
        is_warmup_given=options.warmup is not None,
    )
    iters, warmup = calls(nbytes, competitor.facts["level"], one.oversubscribed)
    return replace(one, iters=options.iters or iters, warmup=options.warmup or warmup)


def calls(nbytes: int, level: str, oversubscribed: bool) -> tuple[int, int]:
    """(timed, warm-up) calls of a level: about a second's. A peer that is slower than that makes fewer (BUDGET_S)."""
    if nbytes <= SMALL_NBYTES:
        timed = 100_000 if level == "c" else 3000
        return (max(300, timed // 100), 10) if oversubscribed else (timed, max(100, timed // 100))
    timed = max(10, min(1000 if level == "c" else 300, (512 << 20) // nbytes))
    timed = max(10, timed // 4) if oversubscribed else timed
    return timed, 6 if oversubscribed else max(6, timed // 10)  # MPICH takes its fast path after five calls


def _ours(options: Options, here: Sequence[Peer]) -> list[Peer]:
    """Ours at every level that a peer has (or that was asked for), on each kind of memory."""
    buffers = ["registered", "private"] if options.buffers == "both" else [options.buffers]
    return [Ours(level, memory) for level in _levels(options, here) for memory in buffers]


def _levels(options: Options, here: Sequence[Peer]) -> list[str]:
    levels = [level for level in ("c", "python") if any(peer.facts["level"] == level for peer in here)]
    return levels or [options.level]


def _measure(
    options: Options, meta: dict[str, Any], competitors: Sequence[Peer], ranks: int, cores: tuple[int, ...]
) -> list[tuple[int, Peer, Outcome]]:
    outcomes = []
    timeouts = dict.fromkeys(range(len(competitors)), 0)
    total = options.rounds * len(options.sizes) * len(competitors)
    begin = time.monotonic()
    for turn in range(options.rounds):
        for nbytes in options.sizes:
            for offset in range(len(competitors)):
                at = (offset + turn) % len(competitors)  # nobody is always first
                competitor = competitors[at]
                one = cell(options, competitor, nbytes, ranks, cores, turn == 0)
                if timeouts[at] >= GIVEN_UP:
                    outcome = Outcome(competitor.name, one, "timeout", text="not tried again")
                else:
                    outcome = run_cell(competitor, one, options.deadline_s)
                timeouts[at] += outcome.status == "timeout"
                outcomes.append((turn, competitor, outcome))
                if outcome.status == "failed":
                    print(f"\n# {competitor.name}, {nbytes} B: {outcome.text}", file=sys.stderr)
                _progress(len(outcomes), total, time.monotonic() - begin)
            if turn == 0:
                terminal.show(versus_table.block(meta, outcomes[-len(competitors) :]))
    return outcomes


def _progress(done: int, total: int, seconds: float) -> None:
    if not sys.stderr.isatty():
        return
    left = seconds / done * (total - done)
    end = "\r\033[K" if done == total else ""
    filled = 30 * done // total
    bar = "=" * filled + " " * (30 - filled)
    print(f"\r[{bar}] {done}/{total}, {left:.0f} s left {end}", end="", file=sys.stderr, flush=True)
