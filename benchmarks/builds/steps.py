"""One rank of a job that times training steps. Rank 0 writes what was found.

    LAUNCHER python steps.py [ORDER...] --file FILE      # ORDER: "mlp plain", "mlp shard", "lenet ddp", ...

plain: ringreduce.torch's DistributedOptimizer; shard: the same with shard_step=True; ddp: DistributedDataParallel on
the process group "ringreduce". The models are those of examples/models.py, a global batch has 256 random images. A
figure is the slowest rank's time for forward, backward and step, the median over the steps.

Uses only names that every commit has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import models  # of examples/, which is on the path
import numpy as np
import torch

import ringreduce
import ringreduce.torch as hvd

GLOBAL_BATCH = 256
SEED, LR = 0, 0.01
WARMUP, STEPS = 2, {"mlp": 6, "lenet": 12}
Step = Callable[[], Any]


def main() -> int:
    """Runs the orders. Returns 0; a failed order is in the file, as its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("orders", nargs="*")
    parser.add_argument("--file", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    times: dict[str, dict[str, float]] = {}
    failures: dict[str, str] = {}
    hvd.init()
    for order in args.orders:
        model, mode = order.split()
        try:
            times[order] = {"step": timed(step(model, mode, args.file.parent), STEPS[model])}
        except (AttributeError, TypeError, ringreduce.Error) as error:  # what a commit does not have
            failures[order] = f"{type(error).__name__}: {error}"
    if hvd.rank() == 0:
        args.file.write_text(json.dumps({"times": times, "failures": failures}))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    hvd.shutdown()
    return 0


def step(name: str, mode: str, folder: Path) -> Step:
    """One training step, ready to be called. Collective."""
    model: Any = models.make(name, SEED)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=LR)
    if mode == "ddp":
        if not torch.distributed.is_initialized():
            meet = {"init_method": f"file://{folder}/store", "rank": hvd.rank(), "world_size": hvd.size()}
            torch.distributed.init_process_group("ringreduce", **meet)
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        settings = {"shard_step": True} if mode == "shard" else {}
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Average, **settings)
    count = GLOBAL_BATCH // hvd.size()
    torch.manual_seed(SEED + hvd.rank())
    images, labels = torch.rand(count, 1, 28, 28), torch.randint(10, (count,))

    def once() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return once


def timed(once: Step, steps: int) -> float:
    """Microseconds a step. Collective."""
    for _ in range(WARMUP):
        once()
    mine = []
    ringreduce.barrier()
    for _ in range(steps):
        start = perf_counter_ns()
        once()
        mine.append(float(perf_counter_ns() - start))
    return float(np.median(ringreduce.allreduce(np.array(mine), op=ringreduce.Max))) * 1e-3


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not sys.exit(): DDP's tensors may outlive the process group, and abort the process
