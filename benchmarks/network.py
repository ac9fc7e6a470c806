"""`make bench-network`: all-reduce across hosts, beside MPI and Gloo on the same links, and beside what a link allows.

    sudo .venv/bin/python benchmarks/network.py [--hosts 4] [--rate 1gbit] [--each 1,2] [--sizes 4K,64K,256K,4M,16M]
        [--vs gloo,openmpi,mpich] [--over "tcp,openmpi 5"] [--wire none,fp16,int8] [--rounds 5]
        [--json FILE] [--markdown FILE]

The hosts are those of ringreduce.lab: namespaces on one machine, joined by links that tc shapes. Everybody gets float32
in place, rewritten before each call with data that depends on rank, position and call, and every element of every
result is compared. A call is timed on each rank alone, after a barrier of the same library; a figure is the slowest
rank's median. Every round measures the goodput of a link anew (one TCP stream), and everyone at every size, in turns.
Beside each figure stands what the links' counters saw: with less than a sum needs it is void.
docs/reference/benchmarks.md, "Across hosts", derives the limit. Exit status 1 where a result is wrong or void, or ours
did not come; 2 where there is no lab.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from across import competitors, figures, rounds, table

from ringreduce.bench import machine, report
from ringreduce.bench.options import nbytes, positive
from ringreduce.doctor.software import installed_version
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.exit_on_signal import exit_on_signal
from ringreduce.lab import requirements
from ringreduce.lab.lab import Lab
from ringreduce.lab.network import Counters
from ringreduce.timeline.whole_file import check_writable, whole_file

SIZES = "4K,64K,256K,4M,16M"
DEADLINE_S = 60.0


def main(argv: Sequence[str] | None = None, counters: Callable[[Lab], Counters] = Lab.counters) -> int:
    """Measures, prints, writes.

    Args:
        counters: what the links have carried; a test gives others.
    """
    args = _arguments(argv)
    if reason := requirements.missing():
        print(f"network.py: {reason}", file=sys.stderr)
        return 2
    try:
        for path in filter(None, (args.json, args.markdown)):
            check_writable(Path(path))
        plan, absent = _plan(args)
    except InvalidArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    facts = machine.facts()  # the load average before, not of, the measurement
    rate = None if args.rate == "none" else args.rate
    shared = [Path(__file__).resolve().parent]
    measured = rounds.Measured()
    rows: list[figures.Row] = []
    try:
        with exit_on_signal(), Lab(args.hosts, rate, shared=shared) as lab:  # the lab ends with its processes
            rounds.measure(lab, plan, lambda: counters(lab), measured)
    except UnavailableError as error:
        print(f"network.py: {error}", file=sys.stderr)
        return 2
    finally:
        if measured.cells:  # also where a later part has failed: what came before took long
            command = shlex.join(["benchmarks/network.py", *(sys.argv[1:] if argv is None else argv)])
            about = {**facts, "command": command, "absent": {one.name: one.advice for one in absent}}
            rows = _write(args, plan, measured, about)
    ours = {competitor.name for competitor in plan.competitors if competitor.is_ours}
    bad = [row for row in rows if row.wrong or row.status == "void" or (row.competitor in ours and row.status != "ok")]
    return 1 if bad else 0


def _write(
    args: argparse.Namespace, plan: rounds.Plan, measured: rounds.Measured, facts: dict[str, Any]
) -> list[figures.Row]:
    """Prints and writes what has been measured. Returns the rows."""
    rows = figures.rows(measured.cells, args.hosts)
    low, middle, high = np.quantile(measured.goodput, (0.1, 0.5, 0.9))
    meta: dict[str, Any] = {
        **facts,
        "hosts": args.hosts,
        "rate": args.rate,
        "each": plan.layouts,
        "rounds": plan.rounds,
        "goodput": {"median": middle, "p10": low, "p90": high, "rounds": measured.goodput},
        "competitors": [competitors.facts(competitor) for competitor in plan.competitors],
        "versions": measured.versions,
        "mpi4py": installed_version("mpi4py"),
    }
    print(table.text(meta, rows))
    if args.json:
        results = [{**asdict(row), "date": facts["date"]} for row in rows]
        document = {"meta": meta, "results": results}
        document["cells"] = [figures.cell_facts(cell, args.hosts) for cell in measured.cells]
        report.save(args.json, document)
    if args.markdown:
        with whole_file(Path(args.markdown)) as file:
            file.write(table.markdown(meta, rows).encode())
    return rows


def _plan(args: argparse.Namespace) -> tuple[rounds.Plan, list[Any]]:
    found, absent = competitors.find(args.over, args.wire, args.vs)
    sizes = [nbytes(text) for text in args.sizes]
    if not sizes or any(size % 4 or size == 0 for size in sizes):
        raise InvalidArgumentError("network.py --sizes: a size is a number of float32, 4 bytes each")
    if not found or not found[0].is_ours:
        raise InvalidArgumentError(f"network.py --wire: nothing of ours is left to measure: {absent}")
    plan = rounds.Plan(found, args.each, sizes, args.rounds, args.calls, args.deadline)
    return plan, absent


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--hosts", type=int, default=4, choices=range(2, 9), metavar="N", help="2 to 8 (default 4)")
    add("--rate", default="1gbit", help="of each link and direction, as tc spells it, or none (default 1gbit)")
    add("--each", type=_numbers, default=[1, 2], metavar="LIST", help="ranks on each host, in turns (default 1,2)")
    add("--sizes", type=_words, default=_words(SIZES), metavar="LIST", help=f"bytes per rank (default {SIZES})")
    add("--vs", type=_words, default=["gloo", "openmpi", "mpich"], metavar="LIST",
        help="beside these: gloo, openmpi, mpich, one with its version (openmpi 4) or other settings (openmpi:tuned, "
        "openmpi:ring, mpich:ring, mpich:yield, mpich:heavy); default gloo,openmpi,mpich")  # fmt: skip
    add("--over", type=_words, default=["tcp"], metavar="LIST",
        help='what connects ours: tcp, "tcp encrypted", an MPI such as "openmpi 5" (default tcp)')  # fmt: skip
    add("--wire", type=_words, default=["none"], metavar="LIST",
        help="codecs of ours over the first of these: none,fp16,bf16,int8")  # fmt: skip
    add("--rounds", type=positive, default=5, metavar="N", help="everyone's turns at each size (default 5)")
    add("--calls", type=positive, metavar="N", help="calls of a train (default: by size, 20 to 3)")
    add("--deadline", type=float, default=DEADLINE_S, metavar="S", help="a turn that takes longer says timeout (60)")
    add("--json", metavar="FILE", help="also write everything here")
    add("--markdown", metavar="FILE", help="also write the tables here")
    return parser.parse_args(argv)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    return [positive(word) for word in _words(text)]


if __name__ == "__main__":
    sys.exit(main())
