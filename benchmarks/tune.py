"""Whether `ringreduce tune` chooses the best sizes, how far its predictions are off, and how long it takes.

    .venv/bin/python benchmarks/tune.py [--ranks 2,4] [--runs 10] [--rounds 9] [--json FILE]

For each number of ranks, on this host: runs of the command one after the other, their seconds, the sizes that they
chose, and measured / predicted of their all-reduces. Then one job in which every candidate size has its turn, round
after round, at every size of all-reduce: the time of the sizes chosen most often over that of the best candidate of
each all-reduce, and the same of the defaults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

TOOK = re.compile(r"measured for ([\d.]+) s; plan")
RINGREDUCE = os.path.join(os.path.dirname(sys.executable), "ringreduce")
CALLS = (100, 10)
LARGE_NBYTES = 64 << 10
"""Above this a candidate has the second number of calls in each round."""
RINGRUN = os.path.join(os.path.dirname(sys.executable), "ringrun")


# --- a rank -----------------------------------------------------------------------------------------------------------


def grid(rounds: int) -> None:
    """Rank 0 prints {bytes: {chunk/eager: median seconds}} as JSON."""
    import ringreduce
    from ringreduce.bench import report
    from ringreduce.tuning.choosing import CHUNKS, EAGER_SIZES, LEAST_EAGER
    from ringreduce.tuning.reduction import NBYTES
    from ringreduce.tuning.sizes import Sizes
    from ringreduce.tuning.timing import Timer

    with ringreduce.init():
        timer = Timer(report.cores(report.meta()))
        found: dict[int, dict[str, list[float]]] = {}
        candidates = [Sizes(chunk, eager) for chunk in CHUNKS for eager in (LEAST_EAGER, *EAGER_SIZES)]
        for nbytes in NBYTES:
            # Of the candidates that do the same with this size one stands for all.
            kind_of = {one: None if nbytes <= one.eager_nbytes else one.chunk_nbytes for one in candidates}
            kinds = {kind: one for one, kind in kind_of.items()}
            times: dict[Any, list[float]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for kind, one in kinds.items():
                    timer.set(one)
                    times[kind].append(timer.seconds(nbytes, CALLS[nbytes > LARGE_NBYTES]))
            for one, kind in kind_of.items():
                found.setdefault(nbytes, {})[f"{one.chunk_nbytes}/{one.eager_nbytes}"] = times[kind]
        if ringreduce.rank() == 0:
            medians = {n: {key: statistics.median(each) for key, each in by.items()} for n, by in found.items()}
            print(json.dumps(medians), flush=True)


# --- the whole --------------------------------------------------------------------------------------------------------


def measured(ranks: int, runs: int, rounds: int) -> dict[str, Any]:
    seconds, plans = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            path = Path(folder, f"{number}.json")
            command = [RINGREDUCE, "tune", "-np", str(ranks), "-o", str(path)]
            took = TOOK.search(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            assert took is not None
            seconds.append(float(took[1]))
            plans.append(json.loads(path.read_text(encoding="utf-8")))
    rank_of_grid = [os.path.abspath(__file__), "--grid", str(rounds)]
    command = [RINGRUN, "-np", str(ranks), "--bind", "core", "--no-tag-output", *rank_of_grid]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    by_nbytes: dict[str, dict[str, float]] = json.loads(output.splitlines()[-1])
    chosen = Counter(f"{plan['chunk_nbytes']}/{plan['eager_nbytes']}" for plan in plans)
    favourite = chosen.most_common(1)[0][0]
    ratios: dict[str, list[float]] = {}
    for plan in plans:
        for one in plan["measured"]["reductions"]:
            small = "<= 16 KiB" if one["nbytes"] <= 16 << 10 else "> 16 KiB"
            kind = f"{one['algorithm']} {small}"
            ratios.setdefault(kind, []).append(one["measured_us"] / one["predicted_us"])
    return {
        "ranks": ranks,
        "seconds": seconds,
        "chosen": dict(chosen),
        "over_best": {n: by[favourite] / min(by.values()) for n, by in by_nbytes.items()},
        "default_over_best": {n: by[f"{256 << 10}/{8 << 10}"] / min(by.values()) for n, by in by_nbytes.items()},
        "measured_over_predicted": ratios,
    }


def show(found: dict[str, Any]) -> None:
    print(f"{found['ranks']} ranks: {statistics.median(found['seconds']):.2f} s, most {max(found['seconds']):.2f} s")
    print("  chosen chunk/eager limit: " + ", ".join(f"{key} ({n} times)" for key, n in found["chosen"].items()))
    print(f"  {'bytes':>10}{'chosen / best':>16}{'default / best':>16}")
    for nbytes, ratio in found["over_best"].items():
        print(f"  {nbytes:>10}{ratio:>16.2f}{found['default_over_best'][nbytes]:>16.2f}")
    print(f"  {'measured / predicted':<34}{'median':>8}{'10 %':>8}{'90 %':>8}")
    for kind, ratios in found["measured_over_predicted"].items():
        tenths = statistics.quantiles(ratios, n=10)
        print(f"  {kind:<34}{statistics.median(ratios):>8.2f}{tenths[0]:>8.2f}{tenths[-1]:>8.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--grid", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.grid:
        grid(options.grid)
        return 0
    everything = []
    for ranks in options.ranks.split(","):
        everything.append(measured(int(ranks), options.runs, options.rounds))
        show(everything[-1])
    if options.json:
        Path(options.json).write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
