"""Whether the rank that makes the others wait is named, after how many steps, with the right cause, and nobody else.

    .venv/bin/python benchmarks/late_ranks.py [--runs 50] [--only LIST] [--quiet-s 600] [--pause-s 0] [--json FILE]

Each run is a job of its own (four ranks; two for the core that is taken), and each experiment does one thing to one
rank in every step:

    backward-optimizer  computes 200 ms more in its backward, under ringreduce.torch's DistributedOptimizer
    backward-ddp        the same under DDP on the process group "ringreduce"
    loader              sleeps 200 ms, as for input
    core                has a core that three other processes use, too
    two                 rank 3 besides: two ranks sleep alike
    none                nothing, once, for --quiet-s seconds; all sleep --pause-s a step. Nobody is to be named

Prints for each: runs, in how many the right ranks were named, and with the right cause; in how many somebody else was;
the steps until the warning, median and most, which count from the job's first. Exit status 1 where a run went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

EXPERIMENTS = ("backward-optimizer", "backward-ddp", "loader", "core", "two", "none")
MEANWHILE = {
    "backward-optimizer": "on CPU meanwhile",
    "backward-ddp": "on CPU meanwhile",
    "loader": "waited itself",
    "core": "cores are taken",
    "two": "waited itself",
}
LATE = re.compile(r"\] rank (\d+) is late: .* operations; (.*)")
STEPS = 60
EXTRA_S = 0.2
DEADLINE_S = 120.0


# --- a rank -----------------------------------------------------------------------------------------------------------


def work(seconds: float) -> None:
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def train(kind: str, seconds: float, pause_s: float) -> None:
    """Steps of a small network. Rank 0 writes the number of each to stderr, in order with its warnings."""
    import torch

    import ringreduce.torch as hvd

    torch.set_num_threads(1)
    if kind == "backward-ddp":
        import ringreduce.torch.distributed  # noqa: F401  # registers the backend

        torch.distributed.init_process_group("ringreduce")
        rank = torch.distributed.get_rank()
    else:
        hvd.init()
        rank = hvd.rank()
    late = {1, 3} if kind == "two" else {1}

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            if kind.startswith("backward") and rank in late:
                work(EXTRA_S)
            return gradient

    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if kind == "backward-ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    is_over = torch.zeros(1)
    begin = time.monotonic()
    step = 0
    while is_over.item() == 0:
        step += 1
        if rank == 0:
            sys.stderr.write(f"step {step}\n")  # at once: a warning may come between two writes
        if kind in ("loader", "two") and rank in late:
            time.sleep(EXTRA_S)
        elif kind == "core":
            work(0.06)
        elif kind == "none":
            time.sleep(pause_s)
        optimizer.zero_grad()
        Slow.apply(model(torch.randn(64, 256))).square().mean().backward()
        optimizer.step()
        is_over[0] = time.monotonic() - begin > seconds if seconds else step == STEPS
        if seconds and kind == "backward-ddp":
            torch.distributed.broadcast(is_over, 0)
        elif seconds:
            is_over = hvd.broadcast(is_over, 0, name="over")
    if kind == "backward-ddp":
        torch.distributed.destroy_process_group()


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass
class Results:
    """Of the runs of one experiment."""

    runs: int = 0
    named: int = 0
    right_cause: int = 0
    others: int = 0
    steps: list[int] = field(default_factory=list)

    def row(self, kind: str) -> str:
        steps = f"{statistics.median(self.steps):>8g}{max(self.steps):>8}" if self.steps else f"{'-':>8}{'-':>8}"
        return f"{kind:<20}{self.runs:>6}{self.named:>8}{self.right_cause:>14}{self.others:>8}{steps}"


def command(kind: str, seconds: float, pause_s: float) -> list[str]:
    program = [os.path.abspath(__file__), "--rank-of", kind, "--quiet-s", str(seconds), "--pause-s", str(pause_s)]
    ranks = "2" if kind == "core" else "4"
    if kind == "backward-ddp":
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, *program]
    return [os.path.join(os.path.dirname(sys.executable), "ringrun"), "-np", ranks, *program]


def run(kind: str, seconds: float, pause_s: float, results: Results) -> None:
    """One job, which is ended with its first warning."""
    cores = sorted(os.sched_getaffinity(0))
    hog = [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cores[-1]}}})\nwhile True: pass"]
    hogs = [subprocess.Popen(hog) for _ in range(3 if kind == "core" else 0)]
    expected = {"two": {1, 3}, "none": set()}.get(kind, {1})
    step = 0
    said: list[str] = []
    named: dict[int, str] = {}
    deadline = time.monotonic() + DEADLINE_S + seconds
    job = subprocess.Popen(
        command(kind, seconds, pause_s), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stderr is not None
        for line in job.stderr:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{kind}: a run takes longer than {DEADLINE_S:g} s")
            said.append(line)
            step_line = re.search(r"^step (\d+)", line)
            warning = LATE.search(line)
            if step_line:
                step = int(step_line[1])
            if warning:
                named[int(warning[1])] = warning[2]
                if kind == "none":
                    print(f"after {step} steps: {line}", end="", file=sys.stderr, flush=True)
            if expected and expected <= named.keys():
                break
    finally:
        for process in (job, *hogs):
            process.terminate()
            process.wait()
    if not expected <= named.keys():
        print(
            f"{kind}: status {job.returncode}, {sorted(expected - named.keys())} not named",
            *said,
            sep="\n",
            file=sys.stderr,
        )
    results.runs += 1
    results.named += bool(expected) and expected <= named.keys()
    results.right_cause += bool(expected) and all(MEANWHILE[kind] in named.get(rank, "") for rank in expected)
    results.others += bool(named.keys() - expected)
    if expected and expected <= named.keys():
        results.steps.append(step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--only", default=",".join(EXPERIMENTS), help="some of the experiments, with commas")
    parser.add_argument("--quiet-s", type=float, default=600.0)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        train(options.rank_of, options.quiet_s, options.pause_s)
        return 0
    print(f"{'experiment':<20}{'runs':>6}{'named':>8}{'right cause':>14}{'others':>8}{'steps':>8}{'most':>8}")
    everything: dict[str, Results] = {}
    for kind in options.only.split(","):
        results = everything[kind] = Results()
        for _ in range(1 if kind == "none" else options.runs):
            run(kind, options.quiet_s if kind == "none" else 0.0, options.pause_s, results)
        print(results.row(kind), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({kind: vars(results) for kind, results in everything.items()}, file, indent=1)
    wrong = [kind for kind, one in everything.items() if one.others or (kind != "none" and one.named < one.runs)]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
