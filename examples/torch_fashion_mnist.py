"""Trains LeNet, an MLP or ResNet-18 on Fashion-MNIST, on one rank or many.

    ringrun -np 2 python examples/torch_fashion_mnist.py --model lenet --epochs 10

The global batch is --batch-size on any number of ranks: each rank takes its share of every batch, of the last one too,
so that nothing is dropped or seen twice. A rank's loss is summed over its share and divided by the global batch, and
gradients are summed over the ranks: the step is that of one rank on the whole batch, also where shares differ.

--bound measures what communication costs: windows of this training alternate with windows of as many independent
trainings, each on its share of every batch. fraction = samples/s of the former / of the latter.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any, NamedTuple

import fashion_mnist
import models
import torch

import ringreduce.torch as hvd

WINDOW_S = 1.5  # of one measuring window


class Images(NamedTuple):
    """Images as bytes and their labels."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


class Trainer:
    """A model, and an optimizer that may or may not reduce gradients over ranks."""

    def __init__(self, options: argparse.Namespace, reduces: bool) -> None:
        self.dtype = getattr(torch, options.dtype)
        self.model = models.make(options.model, options.seed, self.dtype)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=options.lr)
        if reduces:
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, self.model.named_parameters(), op=hvd.Sum)

    def scores(self, images: Images, rows: torch.Tensor) -> torch.Tensor:
        return self.model(images.pixels[rows].to(self.dtype).div_(255).unsqueeze(1))

    def step(self, images: Images, batch: torch.Tensor) -> torch.Tensor:
        """One step on this rank's share of the batch (indices of images). Returns the share's part of the loss."""
        mine = batch[share(len(batch))]
        self.optimizer.zero_grad()
        loss = torch.zeros(())
        if len(mine):  # a last batch may have fewer images than there are ranks
            total = torch.nn.functional.cross_entropy(self.scores(images, mine), images.labels[mine], reduction="sum")
            (total / len(batch)).backward()
            loss = total.detach() / len(batch)
        self.optimizer.step()
        return loss


def share(count: int) -> slice:
    """This rank's part of count things: equal parts, the first count % size ranks have one more."""
    base, extra = divmod(count, hvd.size())
    start = hvd.rank() * base + min(hvd.rank(), extra)
    return slice(start, start + base + (hvd.rank() < extra))


def batches(count: int, options: argparse.Namespace, epoch: int) -> tuple[torch.Tensor, ...]:
    """All rows in an order that is the same on every rank, cut into global batches."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(options.seed + epoch))
    return order.split(options.batch_size)[: options.steps]


def accuracy(trainer: Trainer, images: Images) -> float:
    """The part of all images that the model gets right; each rank looks at its share."""
    for buffer in trainer.model.buffers():  # batch norm's statistics, which differ between ranks
        hvd.allreduce_(buffer)
    trainer.model.eval()
    right = torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        for rows in torch.arange(len(images))[share(len(images))].split(1000):
            right += (trainer.scores(images, rows).argmax(1) == images.labels[rows]).sum()
    trainer.model.train()
    return hvd.allreduce(right, op=hvd.Sum).item() / len(images)


def train(trainer: Trainer, data: tuple[Images, Images], options: argparse.Namespace) -> list[dict[str, float]]:
    """Trains for --epochs, the learning rate falling to zero over the second half; returns a row for each epoch."""
    rows = []
    steps = max(1, options.epochs * len(batches(len(data[0]), options, 0)))
    schedule = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda step: min(1.0, 2 - 2 * step / steps))
    for epoch in range(options.epochs):
        todo = batches(len(data[0]), options, epoch)
        loss, samples, start = torch.zeros(()), 0, time.perf_counter()
        for number, batch in enumerate(todo, 1):
            loss += trainer.step(data[0], batch)
            schedule.step()
            samples += len(batch)
            progress(f"epoch {epoch + 1}/{options.epochs}", number, len(todo))
        seconds = time.perf_counter() - start
        row = {
            "epoch": epoch + 1,
            "loss": hvd.allreduce(loss, op=hvd.Sum).item() / len(todo),
            "test_accuracy": accuracy(trainer, data[1]),
            "seconds": seconds,
            "samples_per_s": samples / seconds,
        }
        rows.append(row)
        say(
            "epoch {epoch}: loss {loss:.3f}, test accuracy {test_accuracy:.3f}, {samples_per_s:.0f} samples/s".format(
                **row
            )
        )
    return rows


def measure_bound(trainer: Trainer, images: Images, options: argparse.Namespace) -> dict[str, Any]:
    """Windows of this training and of independent ones, alternating; the median of the ratios of neighbours."""
    trainers = {"independent": Trainer(options, reduces=False), "ringreduce": trainer}
    batch = batches(len(images), options, 0)[0]
    steps = 3
    rates: dict[str, list[float]] = {mode: [] for mode in trainers}
    for window in range(-1, options.bound):  # the first one warms up and says how long a step takes
        for mode in trainers if window % 2 else reversed(trainers):
            hvd.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                trainers[mode].step(images, batch)
            seconds = time.perf_counter() - start
            if window < 0:
                continue
            samples = torch.tensor(len(batch[share(len(batch))]) * steps)
            rates[mode].append(hvd.allreduce(samples / seconds, op=hvd.Sum).item())
            progress("bound", window + 1, options.bound)
        if window < 0:
            slowest = hvd.allreduce(torch.tensor(seconds / steps), op=hvd.Max).item()
            steps = options.steps or max(3, round(WINDOW_S / slowest))
    ratios = [ours / bound for ours, bound in zip(rates["ringreduce"], rates["independent"], strict=True)]
    result = {
        "samples_per_s": statistics.median(rates["independent"]),
        "ringreduce_samples_per_s": statistics.median(rates["ringreduce"]),
        "fraction": statistics.median(ratios),
        "fractions": ratios,
        "steps_per_window": steps,
    }
    say(f"communication-free bound: {result['samples_per_s']:.0f} samples/s, fraction {result['fraction']:.3f}")
    return result


def progress(title: str, done: int, total: int) -> None:
    if hvd.rank() == 0 and sys.stderr.isatty():
        filled = 40 * done // total
        end = "\r\033[K" if done == total else ""
        print(
            f"\r{title} [{'=' * filled}{' ' * (40 - filled)}] {done}/{total} {end}", end="", file=sys.stderr, flush=True
        )


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=models.MODELS, default="lenet")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256, help="global, whatever the number of ranks (256)")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", choices=["float32", "float64", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, help="stop each epoch after so many batches")
    parser.add_argument("--bound", type=int, default=0, metavar="WINDOWS", help="measure the communication-free bound")
    parser.add_argument("--json", metavar="FILE", help="write results there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    hvd.init()
    arrays = [torch.from_numpy(array.copy()) for array in fashion_mnist.load()]
    data = Images(arrays[0], arrays[1].long()), Images(arrays[2], arrays[3].long())
    trainer = Trainer(options, reduces=True)
    result: dict[str, Any] = vars(options) | {
        "ranks": hvd.size(),
        "threads_per_rank": torch.get_num_threads(),
        "gradient_nbytes": sum(p.numel() * p.itemsize for p in trainer.model.parameters()),
    }
    rows = train(trainer, data, options)
    result["epoch"] = rows
    if rows:
        result["test_accuracy"] = rows[-1]["test_accuracy"]
        result["samples_per_s"] = statistics.median(row["samples_per_s"] for row in rows)
    if options.bound:
        result["bound"] = measure_bound(trainer, data[0], options)
    if options.json and hvd.rank() == 0:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)
    hvd.shutdown()


if __name__ == "__main__":
    main()
