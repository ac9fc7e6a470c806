# ringrun -np 2 python examples/parallel/devices.py --devices 1
"""Trains on several devices of one process, as torch.nn.DataParallel does, and shows why ranks are preferred.

    python examples/parallel/devices.py --devices 2 --beside

Each device has a replica of the model and a part of the batch. A thread a device runs forward and backward; then one
thread adds up the gradients, updates the first replica and copies it to the others. Devices are GPUs where there are
some, and else threads of the CPU. Ranks compose with that: each has --devices of its own, and an all-reduce averages
the summed gradients. It moves the gradients and the loss, of 8 bytes each; one rank alone moves nothing.

Threads share one Python interpreter, whose lock (the GIL) lets one of them run Python code at a time; only the kernels
run side by side, and small kernels are short beside the code that starts them. One thread does the sum and the copies,
2 (d - 1) P bytes for d devices and P bytes of parameters, while the devices wait. Ranks are processes, each with an
interpreter, and all of them take part in the all-reduce: Li et al. 2020 (PyTorch Distributed) compare the two. --beside
runs as many ranks of one device on the same batches afterwards, and prints both speeds. With the default sizes on two
cores: two devices of one process 1199 samples/s, two ranks 1351; where other programs used the cores as well, the two
ranks were 1.8 to 3.4 times as fast in each of eight comparisons.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from model import Model
from text import batch, characters

import ringreduce.torch as hvd

SIZES = {"steps": 100, "layers": 2, "width": 48, "rows": 16, "length": 48}
TOLERANCE = 1e-10  # sums over devices and ranks are rounded in another order, by about 1e-16 in float64
WARMUP = 3  # steps that are not timed


class Devices:
    """Replicas of a model, one on each device of this rank, and the optimizer of the first of them."""

    def __init__(self, model: Model, devices: list[str], ranks: int) -> None:
        self.replicas, self.ranks = [copy.deepcopy(model).to(device) for device in devices], ranks
        self.same = list(zip(*(replica.parameters() for replica in self.replicas), strict=True))  # by parameter
        self.optimizer = torch.optim.AdamW(self.replicas[0].parameters(), lr=0.003)
        self.threads = ThreadPoolExecutor(len(devices), initializer=torch.set_num_threads, initargs=(1,))

    def step(self, *data: torch.Tensor) -> float:
        """Returns the loss of the whole batch, of which `data` is this rank's part."""
        parts = list(zip(*(tensor.chunk(len(self.replicas)) for tensor in data), strict=True))
        loss = torch.stack(list(self.threads.map(self.run, self.replicas, parts))).mean()
        for first, *others in self.same:
            for other in others:
                first.grad += other.grad.to(first.device)
            first.grad /= len(self.replicas)
        if self.ranks > 1:
            *means, loss = hvd.grouped_allreduce([*(first.grad for first, *_ in self.same), loss], op=hvd.Average)
            for (first, *_), mean in zip(self.same, means, strict=True):
                first.grad = mean
        self.optimizer.step()
        with torch.no_grad():
            for first, *others in self.same:
                for other in others:
                    other.copy_(first)
        return loss.item()

    @staticmethod
    def run(replica: Model, part: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """What a thread does: the loss and the gradients of one replica."""
        replica.zero_grad()
        loss = replica(*(tensor.to(replica.position.device) for tensor in part))
        loss.backward()
        return loss.detach().cpu()


def beside(options: argparse.Namespace) -> float:
    """The samples/s of as many ranks of one device each."""
    with tempfile.NamedTemporaryFile() as file:
        command = [Path(sys.executable).with_name("ringrun"), "-np", str(options.devices), sys.executable, __file__]
        sizes = [f"--{name}={getattr(options, name)}" for name in SIZES]
        subprocess.run([*command, "--devices=1", *sizes, "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.load(file)["samples_per_s"][0]


def main() -> None:
    options = arguments()
    hvd.init()
    ranks, rank, count = hvd.size(), hvd.rank(), options.devices
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if options.rows % (ranks * count):
        raise SystemExit(f"{options.rows} rows cannot be split over {ranks} ranks of {count} devices")
    if options.beside and ranks > 1:
        raise SystemExit(f"--beside starts ranks of its own: run it in one process, not on {ranks} ranks")
    gpus, first = torch.cuda.device_count(), hvd.local_rank() * count
    devices = [f"cuda:{number % gpus}" if gpus else "cpu" for number in range(first, first + count)]
    text = characters()
    torch.manual_seed(1)  # the same parameters on all ranks
    model = Model(int(text.max()) + 1, options.length, options.width, options.layers)
    split, alone = Devices(model, devices, ranks), Devices(model, ["cpu"], 1)

    losses, largest, nbytes, seconds = [], 0.0, 0, []
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        before, start = hvd.stats()["bytes_moved"], time.perf_counter()
        losses.append(split.step(*(tensor.chunk(ranks)[rank] for tensor in data)))
        seconds.append(time.perf_counter() - start)
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            each = [torch.tensor([alone.step(*data) - losses[-1]])]
            for (other,), replicas in zip(alone.same, split.same, strict=True):
                each += [(one.detach().cpu() - other.detach()).flatten() for one in replicas]
            found = hvd.allgather(torch.cat(each)).abs().max().item()
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the devices' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    if rank == 0:
        timed = seconds[WARMUP:] or seconds
        speeds = [options.rows * len(timed) / sum(timed)] + ([beside(options)] if options.beside else [])
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        for each, speed in zip(((ranks, count), (count, 1)), speeds, strict=False):
            print(f"ranks {each[0]}, devices of a rank {each[1]}: {speed:.0f} samples/s of {options.length} characters")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {nbytes / options.steps / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": nbytes / options.steps, "difference": largest}
            Path(options.json).write_text(json.dumps(result | {"samples_per_s": speeds}))
        if options.picture:
            draw(options.picture, losses, speeds, options.devices)


def draw(path: str, losses: list[float], speeds: list[float], count: int) -> None:
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no screen

    left, right = (figure := Figure(figsize=(10, 4), layout="constrained")).subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="cross entropy of a character")
    names = f"{hvd.size()} ranks,\n{count} devices each", f"{count} ranks,\n1 device each"
    right.bar(names[: len(speeds)], speeds)
    right.set(ylabel="samples/s")
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    parser.add_argument("--devices", type=int, default=2, help="of each rank (default %(default)s)")
    parser.add_argument("--beside", action="store_true", help="also time as many ranks of one device each")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the loss and the samples/s into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
