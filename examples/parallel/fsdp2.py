# ringrun -np 4 python examples/parallel/fsdp2.py --steps 200
"""Trains a transformer whose parameters, gradients and optimizer state are sharded: torch's FSDP2 over ringreduce.

Each rank holds 1/p of every parameter, of its gradient and of its optimizer state: stage 3 of Rajbhandari et al. 2020
(ZeRO), and Zhao et al. 2023 (PyTorch FSDP). torch.distributed.fsdp.fully_shard makes a module's parameters DTensors,
which are split along their first dimension. An all-gather brings a module's whole parameters before its forward, and
once more before its backward, because they are freed in between. A reduce-scatter then averages the gradients and
leaves each rank its share, which the optimizer updates. Nothing in torch's code is changed: import ringreduce.torch
makes the backend "ringreduce" known, and init_method="ringreduce://" takes rank and size from ringrun.

With P bytes of parameters in blocks and R in the rest (padded so that p shares are equal), a rank hands over
2 P / p + R / p bytes to all-gathers and P + R to reduce-scatters in a step: the rest is the root module, which
fully_shard keeps whole from forward to backward. By ring that is 3 (p - 1) / p * P bytes sent for the blocks, 1.5 times
as many as an all-reduce of their gradients sends. The loss takes 8 bytes.
"""

import argparse
import copy
import json

import torch
import torch.distributed as dist
from model import Model
from text import batch, characters
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import ringreduce.torch  # noqa: F401  # makes the backend known

TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


def train(model: Model, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A step. Returns the loss."""
    optimizer.zero_grad()
    loss = model(inputs, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def shard(model: Model, mesh: DeviceMesh) -> Model:
    """Each block is gathered by itself, so that few of them are whole at a time; the root has what is in no block."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def own_rows(whole: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter; no rows, where there are fewer than ranks."""
    rows = -(-len(whole) // dist.get_world_size())
    return whole.detach()[rows * dist.get_rank() : rows * (dist.get_rank() + 1)]


def bytes_moved() -> int:
    """By the group of all ranks. It has counters of its own; hvd.stats() has those of hvd's functions."""
    return dist.group.WORLD.reported().counters()["bytes_moved"]


def main() -> None:
    options = arguments()
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if options.rows % ranks:
        raise SystemExit(f"{options.rows} rows cannot be split over {ranks} ranks")
    text = characters()
    torch.manual_seed(1)  # the same parameters on all ranks
    alone = Model(int(text.max()) + 1, options.length, options.width, options.layers)
    model = shard(copy.deepcopy(alone), init_device_mesh("cpu", (ranks,)))
    optimizer, optimizer_alone = (torch.optim.AdamW(each.parameters(), lr=0.003) for each in (model, alone))

    losses, largest, nbytes = [], torch.zeros(()), 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        before = bytes_moved()
        loss = train(model, optimizer, *(tensor.chunk(ranks)[rank] for tensor in data))
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        nbytes += bytes_moved() - before
        losses.append(loss.item())
        if options.check:
            loss_alone = train(alone, optimizer_alone, *data)
            pairs = zip(model.parameters(), alone.parameters(), strict=True)
            each = [(one.to_local() - own_rows(other)).detach().flatten() for one, other in pairs]
            found = torch.cat([*each, (loss - loss_alone).reshape(1)]).abs().max()
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = torch.maximum(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    held: list[int] = [0] * ranks
    dist.all_gather_object(held, sum(parameter.to_local().nbytes for parameter in model.parameters()))
    whole = sum(parameter.nbytes for parameter in alone.parameters())
    if rank == 0:
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{ranks} ranks: {max(held)} bytes of parameters on a rank at most, {whole} bytes in all")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {nbytes / options.steps / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": nbytes / options.steps, "difference": largest.item()}
            with open(options.json, "w") as file:
                json.dump(result | {"held": held, "whole": whole}, file)
        if options.picture:
            draw(options.picture, losses, held, whole)
    dist.destroy_process_group()


def draw(path: str, losses: list[float], held: list[int], whole: int) -> None:
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no screen

    left, right = (figure := Figure(figsize=(10, 4), layout="constrained")).subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="cross entropy of a character")
    right.bar([f"rank {rank}" for rank in range(len(held))], [nbytes / 1e3 for nbytes in held])
    right.axhline(whole / 1e3, color="black", linestyle="--", label="all parameters, on each rank without sharding")
    right.set(ylabel="kB of parameters between steps", ylim=(0, 1.2 * whole / 1e3))
    right.legend(loc="upper right")
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"steps": 200, "layers": 2, "width": 48, "rows": 16, "length": 48}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the loss and the bytes of parameters into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
