# ringrun -np 2 python examples/torch_local_sgd.py --method diloco --every 50
"""Trains LeNet on Fashion-MNIST with ranks that average every H steps, and counts what they send.

Each rank takes its own part of every epoch's images, in batches of --batch-size / ranks. --method synchronous reduces
gradients in each step, fp16, int8 and powersgd do so in fewer bytes; the others average parameters every --every steps:
docs/user/methods.md. `ringreduce bench train --method ...` draws their losses against time, over a slow link too.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import fashion_mnist
import models
import torch

import ringreduce.torch as hvd

METHODS: dict[str, Callable[[Any, int], Any]] = {
    "synchronous": lambda optimizer, every: hvd.DistributedOptimizer(optimizer),
    "fp16": lambda optimizer, every: hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16),
    "int8": lambda optimizer, every: hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.int8()),
    "powersgd": lambda optimizer, every: hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.powersgd()),
    "averaging": lambda optimizer, every: hvd.LocalSGD(optimizer, every),
    "post-local": lambda optimizer, every: hvd.LocalSGD(optimizer, every, warmup=4 * every),
    "diloco": lambda optimizer, every: hvd.LocalSGD(optimizer, every, outer=hvd.diloco()),
    "streaming": lambda optimizer, every: hvd.LocalSGD(
        optimizer, every, outer=hvd.diloco(), fragments=4, overlap=every // 10, mix=0.5
    ),
    "slowmo": lambda optimizer, every: hvd.LocalSGD(optimizer, every, outer=hvd.slowmo()),
    "easgd": lambda optimizer, every: hvd.LocalSGD(optimizer, every, outer=hvd.ElasticAveraging()),
}
IN_EACH_STEP = ("synchronous", "fp16", "int8", "powersgd")
SHOWN_STEPS = 20
"""The loss of rank 0's batches is written to --json as a mean over so many steps."""


def main() -> None:
    options = arguments()
    hvd.init()
    if options.batch_size < hvd.size() or options.batch_size % hvd.size():
        raise SystemExit(f"--batch-size {options.batch_size} cannot be shared out evenly to {hvd.size()} ranks")
    torch.set_num_threads(options.threads)
    train_images, train_labels, test_images, test_labels = map(torch.tensor, fashion_mnist.load())

    model = models.make("lenet", options.seed, torch.float32)  # the same on all ranks
    # Ranks that average keep a learning rate for their own batches; the sum of all batches is one of synchronous steps.
    optimizer = METHODS[options.method](torch.optim.SGD(model.parameters(), options.lr, momentum=0.9), options.every)

    batch_size = options.batch_size // hvd.size()
    steps = min(options.steps or len(train_images), len(train_images) // options.batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=options.epochs * steps)
    curve: list[tuple[float, float]] = []  # seconds since the first step, loss of the steps since the last entry
    begin, since = time.perf_counter(), 0.0
    for epoch in range(options.epochs):
        order = torch.randperm(len(train_images), generator=torch.Generator().manual_seed(options.seed + epoch))
        mine = order[hvd.rank() :: hvd.size()].split(batch_size)[:steps]
        loss = torch.zeros(())
        for step, rows in enumerate(mine, start=1):
            optimizer.zero_grad()
            part = torch.nn.functional.cross_entropy(scores(model, train_images[rows]), train_labels[rows])
            part.backward()
            optimizer.step()
            schedule.step()
            loss += part.detach() / len(mine)
            since += part.item() / SHOWN_STEPS
            if step % SHOWN_STEPS == 0:
                curve.append((time.perf_counter() - begin, since))
                since = 0.0
        since = 0.0
        if options.method not in IN_EACH_STEP and epoch == options.epochs - 1:
            optimizer.synchronize()  # the last steps since the last averaging, too
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss:.3f}", flush=True)
    sent, on_wire = (hvd.stats()[counter] for counter in ("bytes_moved", "bytes_on_wire"))

    accuracy = correct(model, test_images, test_labels) / len(test_images)
    if hvd.rank() == 0:
        kilobytes = sent / max(1, options.epochs * steps) / 1e3
        print(f"{options.method}: test accuracy {accuracy:.4f}, {kilobytes:.2f} kB of tensors a step and rank")
        if options.json:
            result = {"method": options.method, "every": options.every, "ranks": hvd.size(), "accuracy": accuracy}
            result |= {"nbytes": sent, "wire_nbytes": on_wire, "steps": options.epochs * steps, "curve": curve}
            with open(options.json, "w") as file:
                json.dump(result, file)


def scores(model: torch.nn.Module, pixels: torch.Tensor) -> torch.Tensor:
    return model(pixels.float().div_(255).unsqueeze(1))


def correct(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """How many the ranks' common model gets right; each looks at its part."""
    model.eval()
    right = torch.zeros(())
    with torch.no_grad():
        for rows in torch.arange(hvd.rank(), len(images), hvd.size()).split(1000):
            right += (scores(model, images[rows]).argmax(1) == labels[rows]).sum()
    return hvd.allreduce(right, op=hvd.Sum).item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, default="diloco")
    parser.add_argument("--every", type=int, default=50, help="steps between two averagings (default %(default)s)")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="at most so many an epoch")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together (default %(default)s)")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="also write the result to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
