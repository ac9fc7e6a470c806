"""Trains a transformer on a mesh of ranks, data parallel along one axis and tensor parallel along the other.

    ringrun -np 4 python examples/parallel/mesh.py --mesh 2 2 --steps 400 --check

A mesh of DxT ranks is D copies of the model, each split over T ranks: rank d * T + t holds part t of copy d. Each row
is a process set, which trains on 1/D of the batch and sums activations as in tensor_parallel.py. Each column is one,
whose ranks hold the same part, and averages gradients once a step. Tensor parallelism communicates in every layer, so
consecutive ranks do it, which share a host: Narayanan et al. 2021. Rows do not wait for each other, nor do columns.

bytes_moved counts 4 * layers all-reduces of rows / D * length * width * 8 bytes in the row, and in the column one of
the rank's parameters and the loss, 8 bytes each. It counts groups of one rank, too, which send nothing.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from text import batch, characters
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, scaled_dot_product_attention

import ringreduce.torch as hvd

Parameters = dict[str, torch.Tensor]
Map = Callable[[torch.Tensor], torch.Tensor]
# The dimension along which a parameter is split: output features if column-parallel, input features if row-parallel.
SPLIT = {"qkv": 1, "out": 1, "up": 0, "up_bias": 0, "down": 1}  # qkv: three weights
TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


def own_group(groups: list[list[int]]) -> hvd.ProcessSet:
    """Registers process sets, on all ranks in the same order, and returns the one that this rank is in."""
    sets = [hvd.global_process_set if len(ranks) == hvd.size() else hvd.add_process_set(ranks) for ranks in groups]
    return next(one for one in sets if one.included())


class CopyToRow(torch.autograd.Function):  # f of tensor_parallel.py, which says why the gradients of f and g are these
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, row: hvd.ProcessSet) -> torch.Tensor:
        ctx.row = row
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return hvd.allreduce(grad, op=hvd.Sum, process_set=ctx.row), None


class SumOverRow(torch.autograd.Function):  # g of tensor_parallel.py
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, row: hvd.ProcessSet) -> torch.Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum, process_set=row)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def loss_of(p: Parameters, data: Sequence[torch.Tensor], heads: int, f: Map, g: Map) -> torch.Tensor:
    """The cross entropy of the next character, by a rank's part of the model, which has `heads` heads."""
    inputs, targets = data
    x = embedding(inputs, p["embedding"]) + p["position"]
    for layer in range(sum(name.endswith(".qkv") for name in p)):
        own = {name.partition(".")[2]: tensor for name, tensor in p.items() if name.startswith(f"{layer}.")}
        y = f(layer_norm(x, x.shape[-1:], own["norm1"]))
        query, key, value = (linear(y, weight).unflatten(2, (heads, -1)).transpose(1, 2) for weight in own["qkv"])
        y = scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)
        x = x + g(linear(y, own["out"]))
        y = f(layer_norm(x, x.shape[-1:], own["norm2"]))
        y = gelu(linear(y, own["up"], own["up_bias"]))
        x = x + g(linear(y, own["down"])) + own["down_bias"]  # a bias before g would be added once for each rank
    x = linear(layer_norm(x, x.shape[-1:], p["norm"]), p["head"])
    return cross_entropy(x.flatten(0, 1), targets.flatten())


def make(kinds: int, width: int, length: int, layers: int) -> Parameters:
    """The whole model's parameters, the same on all ranks."""
    attention = {"norm1": (width,), "qkv": (3, width, width), "out": (width, width)}
    mlp = {"up": (4 * width, width), "up_bias": (4 * width,), "down": (width, 4 * width), "down_bias": (width,)}
    shapes = {"embedding": (kinds, width), "position": (length, width), "norm": (width,), "head": (kinds, width)}
    for layer in range(layers):
        shapes |= {f"{layer}.{name}": shape for name, shape in (attention | {"norm2": (width,)} | mlp).items()}
    random = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(shape, generator=random, dtype=torch.float64) * shape[-1] ** -0.5 + float("norm" in name)
        for name, shape in shapes.items()
    }


def part(name: str, whole: torch.Tensor, row: hvd.ProcessSet) -> torch.Tensor:
    """This rank's part of a parameter."""
    kind = name.partition(".")[2]
    return whole.chunk(row.size(), SPLIT[kind])[row.rank()] if kind in SPLIT else whole


class Trainer:
    """Parameters, and the optimizer that changes them."""

    def __init__(self, parameters: Parameters, heads: int, f: Map, g: Map) -> None:
        self.parameters = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=0.003)
        self.settings = heads, f, g

    def step(self, data: Sequence[torch.Tensor], column: hvd.ProcessSet | None = None) -> float:
        self.optimizer.zero_grad()
        loss = loss_of(self.parameters, data, *self.settings)
        loss.backward()
        loss = loss.detach()
        if column:
            gradients = [parameter.grad for parameter in self.parameters.values()]
            hvd.grouped_allreduce_([loss, *gradients], op=hvd.Average, process_set=column)
        self.optimizer.step()
        return loss.item()


def difference(split: Trainer, alone: Trainer, losses: tuple[float, float], row: hvd.ProcessSet) -> float:
    """The largest one on any rank, of losses and of the rank's part of the parameters."""
    pairs = [(tensor, part(name, alone.parameters[name], row)) for name, tensor in split.parameters.items()]
    each = [(one - other).detach().abs().max() for one, other in pairs]
    each.append(torch.tensor(losses[0] - losses[1], dtype=torch.float64).abs())
    return hvd.allgather(torch.stack(each).max().reshape(1)).max().item()


def main() -> None:
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    ranks = hvd.size()
    copies, parts = options.mesh or (max(ranks // 2, 1), min(ranks, 2))
    if copies * parts != ranks:
        raise SystemExit(f"a mesh of {copies}x{parts} needs {copies * parts} ranks, not {ranks}")
    for name, number, by in (("heads", options.heads, parts), ("rows", options.rows, copies)):
        if number % by:
            raise SystemExit(f"{number} {name} cannot be split by {by}, of a mesh of {copies}x{parts}")
    row = own_group([list(range(copy * parts, (copy + 1) * parts)) for copy in range(copies)])
    column = own_group([list(range(at, ranks, parts)) for at in range(parts)])
    text = characters()
    whole = make(int(text.max()) + 1, options.width, options.length, options.layers)
    own = {name: part(name, tensor, row) for name, tensor in whole.items()}
    f, g = lambda x: CopyToRow.apply(x, row), lambda x: SumOverRow.apply(x, row)
    split = Trainer(own, options.heads // parts, f, g)
    alone = Trainer(whole, options.heads, lambda x: x, lambda x: x)
    losses, losses_alone, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        mine = [tensor.chunk(copies)[column.rank()] for tensor in data]
        before = hvd.stats()["bytes_moved"]
        losses.append(split.step(mine, column))
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            losses_alone.append(alone.step(data))
            found = difference(split, alone, (losses[-1], losses_alone[-1]), row)
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if hvd.rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    if hvd.rank() == 0:
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        nbytes /= options.steps
        print(f"mesh of {copies}x{parts}: loss {losses[-1]:.3f}, {nbytes / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"mesh": [copies, parts], "losses": losses, "nbytes": nbytes, "difference": largest}
            Path(options.json).write_text(json.dumps(result | {"ranks": ranks}))
        if options.picture:
            draw(options.picture, losses, losses_alone, f"mesh of {copies}x{parts}")


def draw(path: str, losses: list[float], losses_alone: list[float], label: str) -> None:
    from matplotlib.figure import Figure  # it draws PNG by Agg, without a display

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, linewidth=3, alpha=0.5, label=label)
    if losses_alone:
        axes.plot(losses_alone, "k--", linewidth=1, label="one rank")
    axes.set(xlabel="step", ylabel="cross entropy of a character")
    axes.legend()
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=int, nargs=2, metavar=("D", "T"), help="default: T is 2, on more ranks than one")
    for name, number in {"steps": 400, "layers": 2, "heads": 4, "width": 64, "rows": 8, "length": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help="default %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw loss against step into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
