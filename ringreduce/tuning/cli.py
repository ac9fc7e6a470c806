"""`ringreduce tune`: starts the ranks where there are none yet; as a rank, measures; as rank 0, prints and writes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce import config, state
from ringreduce.bench import report, terminal
from ringreduce.bench.options import positive
from ringreduce.bench.start import started
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.job.collective_json import allgather_json
from ringreduce.launch.command_line.host_options import add_launch_options, hosts_and_ranks, ringrun_words
from ringreduce.plan import FILE_NBYTES, VARIABLE, Plan, processor, ranks_by_host
from ringreduce.timeline.ranges import ranges
from ringreduce.timeline.whole_file import whole_file
from ringreduce.tuning import costs, reduction, table
from ringreduce.tuning.choosing import Choice, choose_chunk, choose_eager
from ringreduce.tuning.sizes import default_sizes
from ringreduce.tuning.timing import Timer, within_hosts

HOST_S = 2.0
"""Measuring takes about so long for each host."""
CHOOSING, CHOSEN, FORCED = 0.15, 0.3, 0.1
"""Shares of this time: for comparing sizes, for all-reduces of the table, for those by other algorithms. The rest is
for the parts."""
UNWANTED = (VARIABLE, "RINGREDUCE_CHUNK", "RINGREDUCE_ALGORITHM")
"""Variables that would decide what is to be measured."""


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0; 2 when the arguments ask for what there is not."""
    args = _parser().parse_args(argv)
    try:
        knobs = [config.value(name) for name in UNWANTED]
        if given := [knob.name for knob in knobs if knob.value not in ("", knob.default)]:
            raise InvalidArgumentError(f"ringreduce tune: unset {', '.join(given)}: it decides what is to be measured")
        hosts, ranks = hosts_and_ranks(args, "ringreduce tune")
        status = started("ringreduce.tuning", argv, ranks, hosts, ringrun_words(args, hosts), args.bind)
        if status is not None:
            return status
        return run(args.output)
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def run(output: str | None) -> int:
    """As one rank of the job: measures. Rank 0 prints, and writes the plan to output. Returns the exit status.

    Where the reader of what it prints has gone (`| head`), it writes the plan all the same.
    """
    path = os.path.abspath(output) if output is not None else None
    with ringreduce.init():
        prints = ringreduce.rank() == 0
        report.check_on_first(path)
        facts = report.meta()
        cores = report.cores(facts)
        hosts = state.require().hosts
        ranks = ranks_by_host(hosts)
        processors = allgather_json(ringreduce.global_process_set.group, "tuning.processors", processor())
        if prints:
            terminal.shown(table.head(facts, ranks))
        begin = time.monotonic()
        budget_s = HOST_S * len(ranks)
        timer, choices = Timer(cores), []
        sizes = default_sizes(ringreduce.global_process_set.group, ranks, cores)
        several = within_hosts(hosts) if len(ranks) > 1 and max(ranks) > 1 else nullcontext(None)
        with several as within:
            parts = costs.measured(timer, cores, within)
            if prints:
                is_mpi = state.require().reached is None
                terminal.shown(table.costs_text(parts, is_mpi))
            if max(ranks) > 1:
                sizes, choice = choose_chunk(within or timer, sizes, CHOOSING * budget_s)
                choices.append(choice)
        if len(ranks) == 1 and ranks[0] > 1:
            sizes, choice = choose_eager(timer, sizes)
            choices.append(choice)
        timer.set(sizes)
        reductions = reduction.chosen(timer, parts, sizes.eager_nbytes, CHOSEN * budget_s)
        spent_s = time.monotonic() - begin
        plan = Plan(
            ranks,
            tuple(processors[rank] for rank in sorted(set(hosts))),
            sizes.chunk_nbytes,
            sizes.eager_nbytes if len(ranks) == 1 else 0,
            _for_people(facts, reductions, choices),
        )
        _write(path, plan)
        if prints:
            if choices:
                terminal.shown(table.choices_text(choices))
            terminal.shown(table.reductions_text(reductions))
    if len(hosts) > 1:
        begin = time.monotonic()
        forced = reduction.forced(parts, sizes, cores, FORCED * budget_s)
        spent_s += time.monotonic() - begin
        if prints:
            terminal.shown(table.rows_text(forced))
    if prints:
        terminal.shown(table.tail(plan, spent_s, path))
    return 0


def _write(path: str | None, plan: Plan) -> None:
    """On rank 0 writes the file. Collective: raises InvalidArgumentError on all ranks where that cannot be, or where
    init() would refuse the file for its size."""
    problem = ""
    if path is not None and ringreduce.rank() == 0:
        text = plan.text().encode()
        try:
            if len(text) > FILE_NBYTES:
                raise InvalidArgumentError(
                    f"ringreduce tune: the plan has {len(text)} bytes, and init() reads {FILE_NBYTES} at most"
                )
            with whole_file(Path(path)) as file:
                file.write(text)
        except InvalidArgumentError as error:
            problem = str(error)
    problem = allgather_json(ringreduce.global_process_set.group, "tuning.output", problem)[0]
    if problem:
        raise InvalidArgumentError(problem)


def _for_people(
    facts: dict[str, Any], reductions: Sequence[reduction.Reduction], choices: Sequence[Choice]
) -> dict[str, Any]:
    return {
        "by": facts["ringreduce"],
        "date": facts["date"],
        "isa": facts["isa"],
        "knobs": facts["knobs"],
        "binding": _binding_text(facts["binding"]),
        "choices": [asdict(one) for one in choices],
        "reductions": [asdict(one) for one in reductions],
    }


def _binding_text(binding: Sequence[Sequence[int]]) -> dict[str, str]:
    """The ranks by the CPUs of their hosts that they may use: short, since every rank may have all of many."""
    found: dict[str, list[int]] = {}
    for rank, cpus in enumerate(binding):
        found.setdefault(ranges(cpus), []).append(rank)
    return {cpus: ranges(ranks) for cpus, ranks in found.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringreduce tune",
        description=f"Measures the ranks of a job and what is between them, for about {HOST_S:g} s a host: prints what "
        "all-reduces should take and do take, and chooses the sizes that depend on the machine. They change when "
        f"things happen, never the bits of a result. The file of -o is for {VARIABLE}.",
    )
    add = parser.add_argument
    add("-np", "--np", dest="ranks", type=positive, metavar="N", help="ranks to start (default 2, or those started)")
    add_launch_options(parser, "ranks on these hosts, host:slots,...")
    add("-o", "--output", metavar="FILE", help="write the plan here, on the first host")
    return parser
