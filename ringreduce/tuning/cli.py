"""`ringreduce tune`: starts the ranks where there are none yet; as a rank, measures; as rank 0, prints and writes."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ringreduce
from ringreduce import state
from ringreduce.bench import report, terminal
from ringreduce.bench.options import DEFAULT_RANKS, positive
from ringreduce.bench.start import start
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.job import environment
from ringreduce.job.collective_json import allgather_json
from ringreduce.launch.host_options import add_host_options, host_list, ringrun_words, without_host_options
from ringreduce.launch.hosts import is_this_host
from ringreduce.plan import VARIABLE, Plan, processor, ranks_by_host
from ringreduce.timeline.whole_file import whole_file
from ringreduce.tuning import costs, reduction, table
from ringreduce.tuning.choosing import choose
from ringreduce.tuning.timing import Timer

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
        if given := [name for name in UNWANTED if os.environ.get(name)]:
            raise InvalidArgumentError(f"ringreduce tune: unset {', '.join(given)}: it decides what is to be measured")
        hosts = host_list(args)
        slots = sum(host.slots for host in hosts)
        if slots and args.ranks not in (None, slots):
            raise InvalidArgumentError(f"ringreduce tune: -np {args.ranks}, and the hosts have {slots} slots")
        if len(hosts) == 1 and is_this_host(hosts[0].name):
            hosts = []
        ranks = slots or args.ranks
        place = environment.detect(network=True)
        if place.source == "single" and (ranks != 1 or hosts):
            launch = [*ringrun_words(args, hosts), "--bind", args.bind]
            return start("ringreduce.tuning", without_host_options(argv), ranks or DEFAULT_RANKS, launch)
        if hosts:
            raise InvalidArgumentError(f"-H inside a job of {place.size} ranks ({place.source})")
        if ranks not in (None, place.size):
            raise InvalidArgumentError(f"-np {ranks} inside a job of {place.size} ranks ({place.source})")
        return run(args.output)
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def run(output: str | None) -> int:
    """As one rank of the job: measures. Rank 0 prints, and writes the plan to output. Returns the exit status."""
    with ringreduce.init():
        prints = ringreduce.rank() == 0
        facts = report.meta()
        cores = report.cores(facts)
        ranks = ranks_by_host(state.require().hosts)
        processors = allgather_json(ringreduce.global_process_set.group, "tuning.processors", processor())
        if prints:
            terminal.show(table.head(facts, ranks))
        begin = time.monotonic()
        timer = Timer(cores)
        parts = costs.measured(timer, cores)
        if prints:
            terminal.show(table.costs_text(parts))
        budget_s = HOST_S * len(ranks)
        sizes, choices = choose(timer, ranks, CHOOSING * budget_s)
        reductions = reduction.chosen(timer, parts, sizes.eager_nbytes, CHOSEN * budget_s)
        spent_s = time.monotonic() - begin
        hosts = state.require().hosts
    begin = time.monotonic()
    if len(hosts) > 1:
        reductions += reduction.forced(parts, sizes, cores, FORCED * budget_s)
    if not prints:
        return 0
    spent_s += time.monotonic() - begin
    plan = Plan(
        ranks,
        tuple(processors[rank] for rank in sorted(set(hosts))),
        sizes.chunk_nbytes,
        sizes.eager_nbytes if len(ranks) == 1 else 0,
        _for_people(facts, reductions, choices),
    )
    if output is not None:
        with whole_file(Path(output)) as file:
            file.write(plan.text().encode())
    if choices:
        terminal.show(table.choices_text(choices))
    terminal.show(table.reductions_text(reductions))
    terminal.show(table.tail(plan, spent_s, output))
    return 0


def _for_people(
    facts: dict[str, Any], reductions: Sequence[reduction.Reduction], choices: Sequence[Any]
) -> dict[str, Any]:
    return {
        "by": facts["ringreduce"],
        "date": facts["date"],
        "isa": facts["isa"],
        "choices": [asdict(one) for one in choices],
        "reductions": [asdict(one) for one in reductions],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringreduce tune",
        description=f"Measures the ranks of a job and what is between them, for about {HOST_S:g} s a host: prints what "
        "all-reduces should take and do take, and chooses the sizes that depend on the machine. They change when "
        f"things happen, never the bits of a result. The file of -o is for {VARIABLE}.",
    )
    add = parser.add_argument
    add("-np", "--np", dest="ranks", type=positive, metavar="N", help="ranks to start (default 2, or those started)")
    add_host_options(parser, "ranks on these hosts, host:slots,...")
    add("--bind", default="core", choices=["core", "none"], help="bind each rank to its share of the cores")
    add("-o", "--output", metavar="FILE", help="write the plan here, on the first host")
    return parser
