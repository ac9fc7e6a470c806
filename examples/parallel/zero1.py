# ringrun -np 4 python examples/parallel/zero1.py --steps 200
"""Trains a transformer with data parallelism and a sharded optimizer state: ZeRO stage 1.

With plain data parallelism each rank holds the whole optimizer state: for AdamW two numbers for each parameter. Here a
rank holds the state of 1/p of the parameters: Rajbhandari et al. 2020 (ZeRO). hvd.DistributedOptimizer does so with
shard_step=True. A reduce-scatter gives each rank the average of its share of the gradients, AdamW updates that share of
the parameters, and an all-gather gives all ranks all shares. Parameters and gradients stay whole on each rank.

With P bytes of parameters, padded so that p shares are equal, a rank hands over P bytes to the reduce-scatter and P / p
to the all-gather; that, and 8 bytes for the loss, is what bytes_moved counts in a step. By ring, each of the two sends
(p - 1) / p * P bytes, and an all-reduce of the gradients sends the same sum, 2 (p - 1) / p * P: sharding the state
takes no more communication. The first step is not counted: there the ranks compare the parameters that they start from.
"""

import argparse
import copy
import json
from typing import Any

import torch
from model import Model
from text import batch, characters

import ringreduce.torch as hvd

TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


class MeasuredAdamW(torch.optim.AdamW):
    """AdamW that says how many bytes of state it holds.

    With shard_step=True the state of the DistributedOptimizer is empty between steps: an optimizer of the user's class
    updates the rank's share, and holds the share's state. Its step() is where that state can be seen.
    """

    ringreduce_elementwise = True  # each element is updated by its own gradient and state, so that shares can be
    held_nbytes: list[int] = []  # noqa: RUF012  # of all instances

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.held_nbytes.append(nbytes_of(self.state))
        return result


def nbytes_of(state: dict[Any, dict[str, Any]]) -> int:
    """Of an optimizer's state: momenta, and counts of steps."""
    return sum(value.nbytes for each in state.values() for value in each.values() if isinstance(value, torch.Tensor))


def train(model: Model, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A step. Returns the loss."""
    optimizer.zero_grad()
    loss = model(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    options = arguments()
    hvd.init()
    ranks, rank = hvd.size(), hvd.rank()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if options.rows % ranks:
        raise SystemExit(f"{options.rows} rows cannot be split over {ranks} ranks")
    if options.steps < 2:
        raise SystemExit(
            f"--steps {options.steps}: bytes are counted from the second step, so there must be 2 at least"
        )
    text = characters()
    torch.manual_seed(1)  # the same parameters on all ranks
    alone = Model(int(text.max()) + 1, options.length, options.width, options.layers)
    model = copy.deepcopy(alone)
    optimizer = hvd.DistributedOptimizer(MeasuredAdamW(model.parameters(), lr=0.003), shard_step=True)
    optimizer_alone = torch.optim.AdamW(alone.parameters(), lr=0.003)

    losses, largest, nbytes = [], 0.0, 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        before = hvd.stats()["bytes_moved"]
        loss = train(model, optimizer, *(tensor.chunk(ranks)[rank] for tensor in data))
        losses.append(hvd.allreduce(loss, op=hvd.Average).item())
        nbytes += hvd.stats()["bytes_moved"] - before if step else 0
        if options.check:
            loss_alone = train(alone, optimizer_alone, *data).item()
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            each = [(one - other).detach().flatten() for one, other in pairs]
            found = hvd.allgather(torch.cat([*each, torch.tensor([losses[-1] - loss_alone])])).abs().max().item()
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    held = hvd.allgather(torch.tensor([MeasuredAdamW.held_nbytes[-1]])).tolist()
    whole = nbytes_of(optimizer.state_dict()["state"])  # gathers the state from all ranks: all of them call it
    if rank == 0:
        mean = nbytes / (options.steps - 1)
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{ranks} ranks: {max(held)} bytes of optimizer state on a rank at most, {whole} bytes in all")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {mean / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": mean, "difference": largest}
            result |= {"held": held, "whole": whole, "parameters": [tensor.numel() for tensor in model.parameters()]}
            with open(options.json, "w") as file:
                json.dump(result, file)
        if options.picture:
            draw(options.picture, losses, held, whole)


def draw(path: str, losses: list[float], held: list[int], whole: int) -> None:
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no screen

    left, right = (figure := Figure(figsize=(10, 4), layout="constrained")).subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="cross entropy of a character")
    right.bar([f"rank {rank}" for rank in range(len(held))], [nbytes / 1e3 for nbytes in held])
    right.axhline(whole / 1e3, color="black", linestyle="--", label="the whole state, on each rank without sharding")
    right.set(ylabel="kB of optimizer state", ylim=(0, 1.2 * whole / 1e3))
    right.legend(loc="upper right")
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"steps": 200, "layers": 2, "width": 48, "rows": 16, "length": 48}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the loss and the bytes of state into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
