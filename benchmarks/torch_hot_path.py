"""What a call and a step cost from torch when there is next to nothing to move.

    .venv/bin/ringrun -np 2 .venv/bin/python benchmarks/torch_hot_path.py

First the time of a synchronous allreduce of a small CPU tensor. Then what DistributedOptimizer adds to a training step
of a model of 1000 small parameters: the same step with the plain optimizer, with the plain one and a barrier (what the
ranks lose by waiting for the slower one of each step), and with the distributed one in turns, each on every rank at
once; medians. Promised: at most 5 us, and at most 1 ms.
"""

from __future__ import annotations

import statistics
import time

import torch

import ringreduce.torch as hvd
from ringreduce.bench.percentile import p99

CALLS = 20_000
PARAMETERS = 1000
TURNS, STEPS = 20, 10


def call_us() -> tuple[float, float]:
    """p50 and p99 of one call in microseconds, on this rank."""
    tensor = torch.ones(2)
    times = []
    for _ in range(CALLS):
        start = time.perf_counter_ns()
        hvd.allreduce(tensor)
        times.append(time.perf_counter_ns() - start)
    times.sort()
    return times[CALLS // 2] / 1000, p99(times) / 1000


class Training:
    """A model of many small parameters, and its optimizer."""

    def __init__(self, kind: str) -> None:
        self.parameters = [torch.nn.Parameter(torch.full((16,), 1.0 + i)) for i in range(PARAMETERS)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-3)
        if kind == "in step":
            self.optimizer.register_step_pre_hook(lambda *_: hvd.barrier())
        if kind == "distributed":
            named = [(f"p{i}", parameter) for i, parameter in enumerate(self.parameters)]
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named)

    def steps_ms(self) -> float:
        """A step in milliseconds, mean of STEPS; the ranks begin together."""
        hvd.barrier()
        start = time.perf_counter()
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            torch.stack([parameter.sum() for parameter in self.parameters]).sum().backward()
            self.optimizer.step()
        return (time.perf_counter() - start) * 1000 / STEPS


def main() -> None:
    """Measures, and prints on rank 0."""
    torch.set_num_threads(1)
    hvd.init()
    p50, p99 = call_us()
    trainings = [Training(kind) for kind in ("plain", "in step", "distributed")]
    turns = [[training.steps_ms() for training in trainings] for _ in range(1 + TURNS)][1:]
    waiting, added = (statistics.median(turn[i] - turn[0] for turn in turns) for i in (1, 2))
    own = statistics.median(turn[2] - turn[1] for turn in turns)
    if hvd.rank() == 0:
        print(f"allreduce of 8 B, {hvd.size()} ranks: {p50:.2f} us p50, {p99:.2f} us p99")
        print(
            f"a step on {PARAMETERS} parameters: {statistics.median(turn[0] for turn in turns):.2f} ms plain, "
            f"{added:.2f} ms more with DistributedOptimizer; {waiting:.2f} ms more with nothing but a barrier; "
            f"{own:.2f} ms between the two"
        )


if __name__ == "__main__":
    main()
