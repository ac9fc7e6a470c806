# ringrun -np 4 python examples/parallel/sequence_parallel.py --steps 400 --check
"""Trains a transformer with layers split over the ranks and, between these, positions: sequence parallelism.

With tensor parallelism (tensor_parallel.py) all ranks hold equal activations between the pairs of linear layers. Here
each rank holds length / p positions of them: Korthikanti et al. 2022. An all-gather of positions comes before each
column-parallel layer, since attention needs them all, and a reduce-scatter after each row-parallel one, in place of f
and g; each is the other's gradient. Norms, embedding and output layer see a rank's own positions, so the ranks sum the
gradients of these parameters. With the default sizes autograd keeps 10.3 MB for backward on one rank, 3.4 MB on each of
4, and 4.9 MB with tensor parallelism alone.

bytes_moved counts operands: in each block 4 reduce-scatters of a = rows * length * width * 8 bytes and 4 all-gathers of
a / p; and once a step the all-reduce of gradients and loss. By ring, a reduce-scatter and an all-gather each send
(p - 1) / p * a, together as much as the all-reduce in whose place they are.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tensor_parallel import TOLERANCE, Data, Map, Parameters, Trainer, difference, draw, make
from text import batch, characters
from torch.nn.functional import cross_entropy, embedding, gelu, layer_norm, linear, scaled_dot_product_attention

import ringreduce.torch as hvd

# The dimension along which a parameter is split: output features if column-parallel, input features if row-parallel.
SPLIT = {"qkv": 1, "out": 1, "up": 0, "up_bias": 0, "down": 1, "position": 0}  # qkv: three weights


class GatherPositions(torch.autograd.Function):
    """All positions; the gradient is the sum over the ranks, which all use each (hvd.allgather's is the mean)."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return hvd.allgather(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return hvd.reducescatter(grad, op=hvd.Sum)


class ScatterSum(torch.autograd.Function):
    """This rank's positions of the sum of the ranks' outputs. (hvd's own gradient has a factor p, as in Horovod.)"""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return hvd.reducescatter(tensor, op=hvd.Sum)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return hvd.allgather(grad)


def loss_of(p: Parameters, data: Data, heads: int, f: Map, g: Map) -> torch.Tensor:
    """The cross entropy at a rank's positions, which are the first dimension: collectives gather and split that one."""
    inputs, targets = data
    x = embedding(inputs, p["embedding"]) + p["position"].unsqueeze(1)
    for layer in range(sum(name.endswith(".qkv") for name in p)):
        own = {name.partition(".")[2]: tensor for name, tensor in p.items() if name.startswith(f"{layer}.")}
        y = f(layer_norm(x, x.shape[-1:], own["norm1"]))
        query, key, value = (linear(y, weight).unflatten(2, (heads, -1)).permute(1, 2, 0, 3) for weight in own["qkv"])
        y = scaled_dot_product_attention(query, key, value, is_causal=True).permute(2, 0, 1, 3).flatten(2)
        x = x + g(linear(y, own["out"]))
        y = f(layer_norm(x, x.shape[-1:], own["norm2"]))
        y = gelu(linear(y, own["up"], own["up_bias"]))
        x = x + g(linear(y, own["down"])) + own["down_bias"]
    x = linear(layer_norm(x, x.shape[-1:], p["norm"]), p["head"])
    return cross_entropy(x.flatten(0, 1), targets.flatten())


def part(name: str, whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter."""
    kind = name.split(".")[-1]
    return whole.chunk(hvd.size(), SPLIT[kind])[hvd.rank()] if kind in SPLIT else whole


class SequenceTrainer(Trainer):
    """Sums loss and gradients of what each rank has for its own positions only."""

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        replicated = [p.grad for name, p in self.parameters.items() if name.split(".")[-1] not in SPLIT]
        hvd.grouped_allreduce_([loss, *replicated], op=hvd.Sum)
        return loss

    def kept_nbytes(self, data: Data) -> int:
        """What autograd keeps for backward: activations and this rank's part of the parameters."""
        kept, storage = {}, torch.Tensor.untyped_storage
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(storage(t).data_ptr(), t), lambda t: t):
            self.loss_of(self.parameters, data)
        return sum(storage(tensor).nbytes() for tensor in kept.values())


def main() -> None:
    options = arguments()
    hvd.init()
    torch.set_num_threads(1)
    ranks = hvd.size()
    for name, number in (("heads", options.heads), ("length", options.length)):
        if number % ranks:
            raise SystemExit(f"{name} {number} cannot be split over {ranks} ranks")
    text = characters()
    whole = make(int(text.max()) + 1, options.width, options.length, options.layers)
    own = {name: part(name, tensor) for name, tensor in whole.items()}
    f, g = GatherPositions.apply, ScatterSum.apply
    # The mean at a rank's positions is 1/p of that at all.
    split = SequenceTrainer(own, lambda p, data: loss_of(p, data, options.heads // ranks, f, g) / ranks)
    alone = Trainer(whole, lambda p, data: loss_of(p, data, options.heads, lambda x: x, lambda x: x))

    losses, losses_alone, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        data = [tensor.T for tensor in batch(text, step, options.rows, options.length)]  # positions first
        mine = [tensor.chunk(ranks)[hvd.rank()] for tensor in data]
        before = hvd.stats()["bytes_moved"]
        losses.append(split.step(mine))
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            losses_alone.append(alone.step(data))
            parts = {name: part(name, tensor) for name, tensor in alone.parameters.items()}
            found = difference(split.parameters, parts, (losses[-1], losses_alone[-1]))
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if hvd.rank() == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    nbytes, kept = nbytes / options.steps, split.kept_nbytes(mine)
    if hvd.rank() == 0:
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {nbytes / 1e3:.1f} kB a step and rank, kept {kept / 1e6:.1f} MB")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": nbytes, "difference": largest, "kept": kept}
            Path(options.json).write_text(json.dumps(result))
        if options.picture:
            draw(options.picture, losses, losses_alone, f"{ranks} ranks, sequence parallel")


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
