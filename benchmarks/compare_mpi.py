"""All-reduce, fp32 sum: ringreduce beside every MPI of this machine, interleaved size by size in one run.

    .venv/bin/python benchmarks/compare_mpi.py --rounds 5 --json docs/results/allreduce_mpi.json

Both sides are timed by the method of docs/benchmarks.md. A ratio is an MPI's p50 over ours in the same round; what is
reported is the median over the rounds, against the MPI that is best at that size. Takes some minutes, bounded by
--budget.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import contenders
import mpis
import targets

from ringreduce.bench import machine
from ringreduce.bench.options import nbytes

SIZES = "8,512,4K,64K,256K,2M,16M,128M"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison. Returns 0; with --require, 1 when a target is missed."""
    args = _arguments(argv)
    cores = machine.allowed_cores()[: args.cores]
    os.sched_setaffinity(0, cores)  # inherited: ours and theirs share the same cores
    found, absent = mpis.find()
    print("\n".join(absent), file=sys.stderr)
    lanes = contenders.lanes(args.ranks, len(cores), found)
    smalls = contenders.small(len(cores)) if args.small else []
    sizes = [nbytes(text) for text in args.sizes.split(",")]
    begin = time.monotonic()
    results = []
    for turn in range(args.rounds):
        for size in sizes:
            for lane in lanes[turn % len(lanes) :] + lanes[: turn % len(lanes)]:  # nobody is always first
                results.append({**lane.measure(size, check=turn == 0), "round": turn})
        for lane in smalls:
            results.append({**lane.measure(8, check=turn == 0), "round": turn})
        spent = time.monotonic() - begin
        print(f"round {turn + 1} of {args.rounds}: {spent:.0f} s", file=sys.stderr)
        if spent * (turn + 2) / (turn + 1) > args.budget:
            break  # another round would not fit

    ratios = targets.ratios(results)
    facts = {**machine.facts(), "ranks": args.ranks, "cores": cores, "rounds": turn + 1, "absent": absent}
    print(f"# {facts['cpu']}, cores {cores}, {args.ranks} ranks bound, Linux {facts['kernel']}, {turn + 1} rounds")
    print(targets.table(results, ratios))
    judged = targets.judge(results, ratios)
    print("\n".join(judgement.text for judgement in judged))
    if args.json:
        document = {"meta": facts, "results": results, "ratios": ratios}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    wrong = sum(row["wrong"] or 0 for row in results)
    print(f"# wrong elements: {wrong}")
    return 1 if wrong or (args.require and not all(judgement.reached for judgement in judged)) else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-np", dest="ranks", type=int, default=2, metavar="N", help="ranks (default 2)")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="cores they all share (default 2)")
    parser.add_argument("--sizes", default=SIZES, metavar="LIST", help="default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, metavar="R", help="default 5")
    parser.add_argument(
        "--budget", type=float, default=600, metavar="S", help="no round that would end later than this"
    )
    parser.add_argument("--json", metavar="FILE", help="also write every row and ratio here")
    flag = argparse.BooleanOptionalAction
    parser.add_argument("--small", action=flag, default=True, help="ours at 8 B on 2, 4 and 8 ranks as well (default)")
    parser.add_argument("--require", action="store_true", help="exit status 1 when a target is missed")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
