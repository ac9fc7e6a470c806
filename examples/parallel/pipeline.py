# ringrun -np 4 python examples/parallel/pipeline.py --schedule 1f1b --micro-batches 8 --check
"""Trains a transformer whose layers are split over the ranks: pipeline parallelism with micro-batches.

Rank r holds the r-th part of the layers, a stage: it receives activations from rank r - 1 and sends its own to r + 1.
Gradients go the other way. The batch is cut into m micro-batches, so that stages work at the same time. GPipe (Huang et
al. 2019) does all forwards, then all backwards; 1F1B (Narayanan et al. 2019, 2021) starts each backward as soon as it
can. If all take equal time, both leave each of p ranks idle for (p - 1) / (m + p - 1) of a step, the bubble. But a rank
holds the activations of m micro-batches with GPipe, and of p - r at most with 1F1B.

Between neighbours a step moves the batch's activations and as many gradients: 2 * rows * length * width * 8 bytes.
bytes_moved counts them at the sender and at the receiver, so a rank in the middle counts twice as much as an end.

The measured bubble is 1 - time in forwards and backwards / time of a step, averaged over the middle half of the steps,
by the clock of one host. Two cores with 4 ranks cannot show the formula's bubble, as ranks wait for a core. Nor are
stages equal: the last also has the output layer. A forward of the default sizes takes 1 to 2 ms, so messages count too.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from text import batch, characters
from torch.nn.functional import cross_entropy

import ringreduce
import ringreduce.torch as hvd

Box = tuple[str, int, float, float]  # F or B, the number of the micro-batch, begin and end
TOLERANCE = 1e-10  # sums over micro-batches are rounded in another order, by about 1e-16 in float64


def schedule(kind: str, rank: int, ranks: int, count: int) -> list[tuple[str, int]]:
    """What a rank does in a step: F or B, and of which micro-batch."""
    forwards = [("F", number) for number in range(count)]
    backwards = [("B", number) for number in range(count)]
    if kind == "gpipe":
        return forwards + backwards[::-1]
    ahead = min(ranks - 1 - rank, count)  # forwards before the first backward can come back from the last rank
    steady = [one for pair in zip(forwards[ahead:], backwards, strict=False) for one in pair]
    return forwards[:ahead] + steady + backwards[count - ahead :]


def equal_boxes(kind: str, ranks: int, count: int) -> list[list[Box]]:
    """When each rank does what, if each forward and backward takes one unit of time and messages take none."""
    todo = [schedule(kind, rank, ranks, count) for rank in range(ranks)]
    boxes: list[list[Box]] = [[] for _ in todo]
    ends = {("F", number, -1): 0 for number in range(count)} | {("B", number, ranks): 0 for number in range(count)}
    while any(todo):
        for rank in filter(todo.__getitem__, range(ranks)):
            way, number = todo[rank][0]
            needs = (way, number, rank - 1 if way == "F" else rank + 1)
            if needs in ends:
                begin = max([ends[needs], *(end for *_, end in boxes[rank][-1:])])
                boxes[rank].append((*todo[rank].pop(0), begin, begin + 1))
                ends[way, number, rank] = begin + 1
    return boxes


def idle_shares(boxes: list[list[Box]]) -> list[float]:
    """Of each rank: the share of the step, from the first box of all ranks to the last, in which it has none."""
    span = max(row[-1][3] for row in boxes) - min(row[0][2] for row in boxes)
    return [(span - sum(end - begin for *_, begin, end in row)) / span for row in boxes]


class Block(torch.nn.TransformerEncoderLayer):  # with causal attention
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return super().forward(x, mask, is_causal=True)


def work(stage: torch.nn.Module, todo: list[tuple[str, int]], data: tuple[torch.Tensor, ...], width: int) -> tuple:
    """Computes a stage's gradients: loss (0 except on the last rank), boxes, most micro-batches held at a time."""
    rank, last, count = hvd.rank(), hvd.size() - 1, len(todo) // 2
    inputs, targets = (tensor.chunk(count) for tensor in data)
    held, sends, boxes, most, loss = {}, [], [], 0, torch.zeros((), dtype=torch.float64)
    for way, number in todo:
        source, to = (rank - 1, rank + 1) if way == "F" else (rank + 1, rank - 1)
        received = None
        if 0 <= source <= last:
            received = ringreduce.recv(torch.empty(*inputs[0].shape, width).double(), source, tag=number)
        begin = time.perf_counter()
        if way == "F":
            x = inputs[number] if received is None else received.requires_grad_()
            y = stage(x)
            if rank == last:
                y = cross_entropy(y.flatten(0, 1), targets[number].flatten()) / count
                loss += y.detach()
            held[number] = x, y
            most = max(most, len(held))
            result = y.detach()
        else:
            x, y = held.pop(number)
            y.backward(received)
            result = x.grad
        boxes.append((way, number, begin, time.perf_counter()))
        if 0 <= to <= last:  # without waiting: that rank may be sending to this one, too
            sends.append(ringreduce.send_async(result, to, tag=number))
    for handle in sends:
        handle.wait()
    return loss, boxes, most


def main() -> None:
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    rank, ranks = hvd.rank(), hvd.size()
    if options.layers % ranks:
        raise SystemExit(f"{options.layers} layers cannot be split over {ranks} ranks")
    if options.rows % options.micro_batches:
        raise SystemExit(f"{options.rows} rows cannot be split into {options.micro_batches} micro-batches")
    text, width, each = characters(), options.width, options.layers // ranks
    kinds = int(text.max()) + 1
    torch.manual_seed(1)  # the whole model is the same on all ranks
    settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True, "bias": False}
    blocks = [Block(width, options.heads, 4 * width, **settings) for _ in range(options.layers)]
    whole = torch.nn.Sequential(torch.nn.Embedding(kinds, width), *blocks, torch.nn.Linear(width, kinds)).double()
    own = slice(rank * each + (rank > 0), (rank + 1) * each + 1 + (rank == ranks - 1))
    stage, todo = copy.deepcopy(whole[own]), schedule(options.schedule, rank, ranks, options.micro_batches)
    optimizer = torch.optim.Adam([*stage.parameters(), *whole.parameters()], lr=0.003)  # whole: changes if --check

    losses, steps, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        inputs, targets = batch(text, step, options.rows, options.length)
        optimizer.zero_grad()
        before = hvd.stats()["bytes_moved"]
        loss, boxes, held = work(stage, todo, (inputs, targets), width)
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            loss_alone = cross_entropy(whole(inputs).flatten(0, 1), targets.flatten())
            loss_alone.backward()
        optimizer.step()
        loss = hvd.broadcast(loss, ranks - 1)
        losses.append(loss.item())
        steps.append(boxes)
        if options.check:
            pairs = [*zip(stage.parameters(), whole[own].parameters(), strict=True), (loss, loss_alone)]
            found = torch.stack([(one - other).detach().abs().max() for one, other in pairs]).max()
            found = hvd.allgather(found.reshape(1)).max().item()  # of all ranks
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    steps, held, moved = zip(*hvd.allgather_object((steps, held, nbytes / options.steps)), strict=True)
    if rank > 0:
        return
    steps = list(zip(*steps, strict=True))  # each has a list of boxes from each rank
    middle = steps[len(steps) // 4 : len(steps) - len(steps) // 4]
    idle = [sum(shares) / len(middle) for shares in zip(*map(idle_shares, middle), strict=True)]
    result = {"ranks": ranks, "losses": losses, "difference": largest, "nbytes": moved, "held": held, "idle": idle}
    bubble, formula = sum(idle) / ranks, (ranks - 1) / (options.micro_batches + ranks - 1)
    if options.check:
        print(f"equal to one rank: largest difference {largest:.1e}")
    print(f"idle shares {', '.join(f'{share:.3f}' for share in idle)}: bubble {bubble:.3f}, by formula {formula:.3f}")
    kilobytes = ", ".join(f"{nbytes / 1e3:.1f}" for nbytes in moved)
    print(f"{options.schedule}, {ranks} ranks: loss {losses[-1]:.3f}, {kilobytes} kB a step of each rank")
    if options.json:
        Path(options.json).write_text(json.dumps(result | {"bubble": bubble, "formula": formula}))
    if options.picture:
        draw(options, steps[len(steps) // 2], f"mean bubble {bubble:.3f}", f"bubble {formula:.3f}")


def draw(options: argparse.Namespace, measured: list[list[Box]], *titles: str) -> None:
    from matplotlib.figure import Figure  # it draws PNG by Agg, without a display

    ideal = equal_boxes(options.schedule, len(measured), options.micro_batches)
    figure = Figure(figsize=(11, 6), layout="constrained")
    names = "a step as measured, in seconds", "forwards and backwards of equal time"
    for axes, rows, name, title in zip(figure.subplots(2), (measured, ideal), names, titles, strict=True):
        axes.set(title=f"{options.schedule}: {name}, {title}", ylabel="rank", yticks=range(len(rows)))
        axes.invert_yaxis()
        start = min(row[0][2] for row in rows)
        for rank, row in enumerate(rows):
            for way, number, begin, end in row:
                left, length, color = begin - start, end - begin, "C0" if way == "F" else "C2"
                axes.barh(rank, length, left=left, color=color, edgecolor="white")
                axes.text(left + length / 2, rank, f"{way}{number}", size=7, color="white", ha="center", va="center")
    figure.savefig(options.picture, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedule", choices=["gpipe", "1f1b"], default="1f1b")
    numbers = {"steps": 200, "micro-batches": 8, "layers": 4, "heads": 4, "width": 64, "rows": 16, "length": 64}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number, help="default %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the schedule of a step into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
