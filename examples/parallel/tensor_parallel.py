# ringrun -np 4 python examples/parallel/tensor_parallel.py --steps 400 --check
"""Trains a transformer whose linear layers and attention heads are split over the ranks: tensor parallelism.

Each rank holds all layers, and 1/p of each large weight. The first linear layer of a pair is column-parallel: a rank
computes some of its output features, which are some attention heads or some hidden units of the MLP. The second is
row-parallel: a rank has those features as inputs, and the outputs are summed over the ranks. So a pair of layers needs
one all-reduce forward, named g, and one backward, named f: Shoeybi et al. 2019 (Megatron-LM). Embeddings, norms and
output layer are replicated. They see the same numbers on all ranks, so their gradients need no communication.
(Megatron-LM also splits embedding and output layer, by vocabulary.)

A block has two pairs, so a step all-reduces 4 * layers activations of rows * length * width * 8 bytes on each rank.
That is what bytes_moved counts; an all-reduce by ring sends 2 (p - 1) / p times as much.
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
Data = Sequence[torch.Tensor]  # inputs and targets
Map = Callable[[torch.Tensor], torch.Tensor]

# The dimension along which a parameter is split: output features if column-parallel, input features if row-parallel.
SPLIT = {"qkv": 1, "out": 1, "up": 0, "up_bias": 0, "down": 1}  # qkv: three weights

TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


class CopyToRanks(torch.autograd.Function):
    """f: each rank takes the whole input; the input's gradient is the sum of what the ranks' parts give."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: hvd.ProcessSet) -> torch.Tensor:
        ctx.ranks = ranks
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return hvd.allreduce(grad, op=hvd.Sum, process_set=ctx.ranks), None


class SumOverRanks(torch.autograd.Function):
    """g: the sum of the ranks' outputs; the gradient of each of them is the gradient of the sum.

    The gradient of hvd.allreduce is an all-reduce, which is right where each rank has a loss of its own. Here all ranks
    compute the same loss, so the gradient is complete on each; a second sum would multiply it by the number of ranks.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, ranks: hvd.ProcessSet) -> torch.Tensor:
        return hvd.allreduce(tensor, op=hvd.Sum, process_set=ranks)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def loss_of(p: Parameters, data: Data, heads: int, f: Map, g: Map) -> torch.Tensor:
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


def part(name: str, whole: torch.Tensor, ranks: hvd.ProcessSet) -> torch.Tensor:
    """This rank's part of a parameter that is split over the ranks."""
    kind = name.partition(".")[2]
    return whole.chunk(ranks.size(), SPLIT[kind])[ranks.rank()] if kind in SPLIT else whole


class Trainer:
    """Parameters, and the optimizer that changes them."""

    def __init__(self, parameters: Parameters, loss_of: Callable[[Parameters, Data], torch.Tensor]) -> None:
        self.parameters = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=0.003)
        self.loss_of = loss_of

    def step(self, data: Data) -> float:
        self.optimizer.zero_grad()
        loss = self.loss_of(self.parameters, data)
        loss.backward()
        loss = self.reduced(loss.detach())
        self.optimizer.step()
        return loss.item()

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss of all ranks; reduces gradients where ranks have parts of them, which is not so here."""
        return loss


def difference(own: Parameters, parts: Parameters, losses: tuple[float, float]) -> float:
    """The largest one on any rank, of losses and of the rank's part of the parameters."""
    each = [(tensor - parts[name]).detach().abs().max() for name, tensor in own.items()]
    each.append(torch.tensor(losses[0] - losses[1], dtype=torch.float64).abs())
    return hvd.allgather(torch.stack(each).max().reshape(1)).max().item()


def main() -> None:
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    if options.heads % hvd.size():
        raise SystemExit(f"{options.heads} heads cannot be split over {hvd.size()} ranks")
    if options.width % options.heads:
        raise SystemExit(f"width {options.width} cannot be split over {options.heads} heads")
    text = characters()
    whole = make(int(text.max()) + 1, options.width, options.length, options.layers)
    everyone = hvd.global_process_set
    own = {name: part(name, tensor, everyone) for name, tensor in whole.items()}
    f, g = lambda x: CopyToRanks.apply(x, everyone), lambda x: SumOverRanks.apply(x, everyone)
    split = Trainer(own, lambda p, data: loss_of(p, data, options.heads // hvd.size(), f, g))
    alone = Trainer(whole, lambda p, data: loss_of(p, data, options.heads, lambda x: x, lambda x: x))
    losses, losses_alone, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        before = hvd.stats()["bytes_moved"]
        losses.append(split.step(data))
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            losses_alone.append(alone.step(data))
            parts = {name: part(name, tensor, everyone) for name, tensor in alone.parameters.items()}
            found = difference(split.parameters, parts, (losses[-1], losses_alone[-1]))
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if hvd.rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    if hvd.rank() == 0:
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{hvd.size()} ranks: loss {losses[-1]:.3f}, {nbytes / options.steps / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": hvd.size(), "losses": losses, "nbytes": nbytes / options.steps, "difference": largest}
            result |= {"parameters": sum(tensor.numel() for tensor in own.values())}
            Path(options.json).write_text(json.dumps(result))
        if options.picture:
            draw(options.picture, losses, losses_alone, f"{hvd.size()} ranks, tensor parallel")


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
    for name, number in {"steps": 400, "layers": 2, "heads": 4, "width": 64, "rows": 8, "length": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help="default %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw loss against step into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
