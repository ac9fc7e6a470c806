"""How long the other ranks take to raise PeerLostError, over TCP between the lab's hosts. Needs root.

    .venv/bin/python benchmarks/failures.py [--hosts 4] [--each 2] [--kills 100] [--vanished 20] [--one-way 20]
                                            [--json FILE] [--markdown FILE]

    kill      a rank, chosen at random, gets SIGKILL while all reduce
    vanished  the switch drops all that one host sends or is sent
    one way   nothing that one host sends to one other arrives any more

Each time is a job of its own. The time is the slowest rank's, from the failure to the exception. Exit status 1 where a
rank does not raise within 30 s.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ringreduce.bench.percentile import p99
from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import pid_of, tcp_ranks

PROMISED_S = {"kill": 0.5, "vanished": 4.0, "one way": 4.0}
DEADLINE_S = 30.0

WORK = """
import sys, time
import numpy as np
import ringreduce as rr
rr.init()
x = np.ones(20_000, np.float32)
try:
    for step in range(10**9):
        rr.allreduce(x)
        if step == 5:
            print("ready", flush=True)
except rr.PeerLostError:
    print(time.time(), flush=True)
"""


class Job:
    """Ranks that reduce until one is lost."""

    def __init__(self, lab: Lab, each: int, stack: ExitStack) -> None:
        self.lab = lab
        self.each = each
        self.size = len(lab.hosts) * each
        program = lab.folder / "failures.py"
        program.write_text(WORK)
        self.ranks = stack.enter_context(tcp_ranks(lab, [sys.executable, program], each=each))
        for process in self.ranks:
            assert process.stdout is not None
            while (line := process.stdout.readline()) != "ready\n":
                if not line:
                    raise RuntimeError("a rank has ended before the failure")

    def host(self, rank: int) -> str:
        return self.lab.hosts[rank // self.each]

    def pid(self, rank: int) -> int:
        return pid_of(self.lab, self.host(rank), rank)

    def slowest_s(self, failed_s: float, without: set[int]) -> float | None:
        """From the failure to the last rank's exception; None: some rank has raised nothing."""
        raised = []
        for rank in set(range(self.size)) - without:
            output = self.ranks[rank].communicate(timeout=DEADLINE_S)[0]
            found = re.findall(r"^(\d+\.\d+)$", output, re.MULTILINE)
            if not found:
                print(f"rank {rank}: {output}", file=sys.stderr)
                return None
            raised.append(float(found[0]) - failed_s)
        return max(raised)


def kill(job: Job, choose: random.Random) -> float | None:
    victim = choose.randrange(job.size)
    pid = job.pid(victim)
    time.sleep(choose.random() * 0.1)  # somewhere in an operation
    os.kill(pid, signal.SIGKILL)
    return job.slowest_s(time.time(), {victim})


def vanish(job: Job, choose: random.Random) -> float | None:
    """The host's own ranks lose the others."""
    host = choose.choice(job.lab.hosts)
    time.sleep(choose.random() * 0.3)  # somewhere between two heartbeats
    job.lab.cut(host)
    try:
        return job.slowest_s(time.time(), set())
    finally:
        job.lab.mend(host)


def cut_one_way(job: Job, choose: random.Random) -> float | None:
    sender, receiver = choose.sample(job.lab.hosts, 2)
    time.sleep(choose.random() * 0.3)
    job.lab.cut_direction(sender, receiver)
    try:
        return job.slowest_s(time.time(), set())
    finally:
        job.lab.mend_direction(sender, receiver)


def times_of(
    what: str, fail: Callable[[Job, random.Random], float | None], count: int, lab: Lab, each: int
) -> list[float]:
    choose = random.Random(what)
    times = []
    for _ in range(count):
        with ExitStack() as stack:
            slowest = fail(Job(lab, each, stack), choose)
        if slowest is None:
            sys.exit(1)
        times.append(slowest)
    return times


def table(found: dict[str, list[float]]) -> list[str]:
    lines = ["| failure | times | p50 | p99 | slowest | promised |", "|---|---|---|---|---|---|"]
    for what, times in found.items():
        figures = " | ".join(f"{value:.3f} s" for value in (statistics.median(times), p99(sorted(times)), max(times)))
        promised = PROMISED_S[what]
        missed = "" if max(times) < promised else ", missed"
        lines.append(f"| {what} | {len(times)} | {figures} | < {promised:g} s{missed} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--each", type=int, default=2, help="ranks of a host")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--vanished", type=int, default=20)
    parser.add_argument("--one-way", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write all times there, in seconds")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    options = parser.parse_args()
    counts = {"kill": options.kills, "vanished": options.vanished, "one way": options.one_way}
    found = {}
    with Lab(options.hosts, None) as lab:
        for (what, count), fail in zip(counts.items(), (kill, vanish, cut_one_way), strict=True):
            if count:
                found[what] = times_of(what, fail, count, lab, options.each)
    text = f"{options.hosts} hosts of {options.each} ranks, {os.cpu_count()} cores, over TCP.\n\n"
    text += "\n".join(table(found)) + "\n"
    print(text)
    if options.json:
        record = {"hosts": options.hosts, "each": options.each, "cores": os.cpu_count(), "seconds": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(
            f"# How fast a lost rank is noticed\n\n`{' '.join(sys.argv)}`, {time.strftime('%Y-%m-%d')}: {text}"
        )


if __name__ == "__main__":
    main()
