"""How long a small all-reduce takes beside a large one of another group, over TCP between the lab's hosts. Needs root.

    .venv/bin/python benchmarks/small_beside_large.py [--hosts 4] [--each 1] [--rate 1gbit] [--small 8]
                                                      [--large 134217728] [--rounds 5] [--json FILE]

The large one is of all ranks; the small one of a process set without the last rank. In each round the ranks of the set
reduce `small` bytes again and again, first alone, then while the large one is under way. Prints the p50, p99 and
slowest of rank 0's small ones. Promised: a p50 of 3 ms at most for 8 B beside 128 MiB at 1 Gbit/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from ringreduce.bench.percentile import p99
from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import tcp_ranks

PROMISED_MS = 3.0
DEADLINE_S = 600.0
ALONE = 500  # small ones of a round without a large one

WORK = """
import json, sys, time
import numpy as np
import ringreduce as rr

small_nbytes, large_nbytes, rounds, alone = map(int, sys.argv[1:5])
rr.init()
few = rr.add_process_set(range(rr.size() - 1))
small = np.ones(small_nbytes // 4, np.float32)
large = np.ones(large_nbytes // 4, np.float32)
found = {"alone": [], "beside": []}

def reduce_small(to):
    begin = time.perf_counter()
    rr.allreduce(small, op=rr.Sum, process_set=few)
    to.append(time.perf_counter() - begin)

for _ in range(rounds):
    rr.barrier()
    if few.included():
        for _ in range(alone):
            reduce_small(found["alone"])
    rr.barrier()
    handle = rr.allreduce_async(large, op=rr.Sum)
    # Ranks stop after the same small one: rank 0 says when.
    more = few.included()
    while more:
        for _ in range(10):
            reduce_small(found["beside"])
        more = rr.broadcast(np.array([not rr.poll(handle)]), 0, process_set=few)[0]
    assert (rr.synchronize(handle) == rr.size()).all()
if rr.rank() == 0:
    print("found", json.dumps(found), flush=True)
rr.shutdown()
"""


def measure(lab: Lab, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of rank 0's small all-reduces, by whether a large one was under way."""
    words = [str(number) for number in (options.small, options.large, options.rounds, ALONE)]
    program = lab.folder / "small_beside_large.py"
    program.write_text(WORK)
    with tcp_ranks(lab, [sys.executable, program, *words], each=options.each) as ranks:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in ranks]
    if any(process.returncode != 0 for process in ranks):
        sys.exit("\n".join(outputs))
    found: dict[str, list[float]] = json.loads(outputs[0].rpartition("found ")[2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--each", type=int, default=1, help="ranks of a host")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc spells it, or none")
    parser.add_argument("--small", type=int, default=8, metavar="NBYTES")
    parser.add_argument("--large", type=int, default=128 << 20, metavar="NBYTES")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    if options.hosts * options.each < 3:
        parser.error("at least three ranks: the small group is without the last one")
    with Lab(options.hosts, None if options.rate == "none" else options.rate) as lab:
        found = measure(lab, options)
    ms = {
        what: {"count": len(times), "p50": statistics.median(times) * 1e3, "p99": p99(sorted(times)) * 1e3}
        | {"slowest": max(times) * 1e3}
        for what, times in found.items()
    }
    print(f"{options.small} B on {options.hosts} hosts of {options.each} ranks at {options.rate}, over TCP:")
    for what, of in ms.items():
        figures = ", ".join(f"{name} {of[name]:.3f} ms" for name in ("p50", "p99", "slowest"))
        print(f"  {what:7} {figures}, of {of['count']}")
    is_missed = ms["beside"]["p50"] > PROMISED_MS
    print(f"  promised beside {options.large} B: p50 <= {PROMISED_MS:g} ms{', missed' if is_missed else ''}")
    if options.json:
        record = {name: vars(options)[name] for name in ("hosts", "each", "rate", "small", "large", "rounds")}
        options.json.write_text(json.dumps({**record, "ms": ms}, indent=1) + "\n")


if __name__ == "__main__":
    main()
