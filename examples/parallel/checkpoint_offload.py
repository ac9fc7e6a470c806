# ringrun -np 4 python examples/parallel/checkpoint_offload.py --steps 100
"""Trains a transformer that saves memory twice: activation checkpointing, and optimizer state in CPU memory.

Checkpointing (Chen et al. 2016): autograd keeps the input of each block, and backward() runs the block's forward once
more for the activations within. With L blocks that take A bytes each, and inputs of I bytes, autograd keeps about
L * I + A bytes instead of L * A, for one more forward.

Offload (Ren et al. 2021, ZeRO-Offload): parameters and gradients are on the device, AdamW's two momenta in CPU memory.
A step copies parameters and gradients to the CPU, updates the parameters there, and copies them back. Where the device
is the CPU, nothing is copied, and offload saves nothing; with --second-copy the step copies there, too.

hvd.DistributedOptimizer makes both data-parallel: it averages the gradients by all-reduce, and calls the step of the
optimizer that it was given. bytes_moved counts the gradients, each padded to 64 bytes, and 8 bytes for the loss. The
first step is left out: there the ranks compare the parameters that they start from.
"""

import argparse
import copy
import json
from collections import Counter
from pathlib import Path

import torch
from model import Block, Model
from text import batch, characters
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import ringreduce.torch as hvd

TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


class OffloadedAdamW(torch.optim.Optimizer):
    """AdamW with its state in CPU memory, wherever the parameters are."""

    def __init__(self, parameters: list[torch.nn.Parameter], lr: float, second_copy: bool) -> None:
        super().__init__(parameters, {"lr": lr})
        self.copies = second_copy or parameters[0].device.type != "cpu"
        self.pairs = [(each, each.detach().to("cpu", copy=True) if self.copies else each) for each in parameters]
        self.inner = torch.optim.AdamW([on_cpu for _, on_cpu in self.pairs], lr=lr)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group, of_inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            of_inner.update((key, value) for key, value in group.items() if key != "params")  # such as a scheduler's lr
        for on_device, on_cpu in self.pairs:
            state = self.state[on_device]  # where checkpoints and broadcasts look; the inner optimizer has the same
            state.update({key: value.cpu() for key, value in state.items()})  # load_state_dict() puts it on the device
            self.inner.state[on_cpu] = state
            if self.copies:
                on_cpu.copy_(on_device)  # since the last step a checkpoint or a broadcast may have changed it
                on_cpu.grad = on_device.grad.to("cpu", copy=True)
        self.inner.step()
        for on_device, on_cpu in self.pairs if self.copies else ():
            on_device.copy_(on_cpu)


class Saved:
    """A tensor that autograd has saved, and drops with the graph. Memory that several share counts once.

    users: how many there are of each piece of memory; course: the bytes of all pieces, after each change.
    """

    def __init__(self, tensor: torch.Tensor, users: Counter[int], course: list[int]) -> None:
        self.tensor, self.users, self.course = tensor, users, course
        self.change(1)

    def change(self, by: int) -> None:
        storage = self.tensor.untyped_storage()
        self.users[storage.data_ptr()] += by
        is_first_or_last = self.users[storage.data_ptr()] == max(0, by)
        self.course.append(self.course[-1] + by * storage.nbytes() * is_first_or_last)

    def __del__(self) -> None:
        self.change(-1)


class CheckpointedModel(Model):
    """Keeps the blocks' inputs where `checkpointed` is set."""

    checkpointed = False

    def through(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        # use_reentrant=True runs the second forward as any other, so saved_tensors_hooks see it. The other form, which
        # torch recommends, keeps about as much, with hooks of its own, so that ours would count too little.
        return checkpoint(block, x, use_reentrant=True, preserve_rng_state=False) if self.checkpointed else block(x)


def course_of_saved(model: Model, data: list[torch.Tensor]) -> list[int]:
    """The bytes that autograd keeps during forward and backward; what it keeps of parameters is there anyway."""
    users, course = Counter(parameter.untyped_storage().data_ptr() for parameter in model.parameters()), [0]
    with saved_tensors_hooks(lambda tensor: Saved(tensor, users, course), lambda saved: saved.tensor):
        model(*data).backward()
    return course


def train(model: Model, optimizer: torch.optim.Optimizer, data: list[torch.Tensor]) -> torch.Tensor:
    optimizer.zero_grad()
    (loss := model(*data)).backward()
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
    device = f"cuda:{hvd.local_rank() % gpus}" if (gpus := torch.cuda.device_count()) else "cpu"
    text = characters()
    torch.manual_seed(1)  # the same parameters on all ranks
    alone = CheckpointedModel(int(text.max()) + 1, options.length, options.width, options.layers).to(device)
    model = copy.deepcopy(alone)
    data = [tensor.chunk(ranks)[rank].to(device) for tensor in batch(text, 0, options.rows, options.length)]
    courses = [course_of_saved(model, data)]
    model.checkpointed = True
    courses.append(course_of_saved(model, data))
    optimizer = hvd.DistributedOptimizer(OffloadedAdamW(list(model.parameters()), 0.003, options.second_copy))
    optimizer_alone = torch.optim.AdamW(alone.parameters(), lr=0.003)

    losses, largest, nbytes = [], 0.0, 0
    for step in range(options.steps):
        data = [tensor.to(device) for tensor in batch(text, step, options.rows, options.length)]
        before = hvd.stats()["bytes_moved"]
        loss = train(model, optimizer, [tensor.chunk(ranks)[rank] for tensor in data])
        losses.append(hvd.allreduce(loss, op=hvd.Average).item())
        nbytes += hvd.stats()["bytes_moved"] - before if step else 0
        if options.check:
            loss_alone = train(alone, optimizer_alone, data).item()
            one, other = (torch.nn.utils.parameters_to_vector(each.parameters()) for each in (model, alone))
            differences = torch.cat([(one - other).detach().cpu(), torch.tensor([losses[-1] - loss_alone])])
            found = hvd.allgather(differences).abs().max().item()
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)

    if rank == 0:
        state = sum(value.nbytes for each in optimizer.inner.state.values() for value in each.values())
        copied = sum(3 * tensor.nbytes for _, tensor in optimizer.pairs if optimizer.copies)
        nbytes /= max(1, options.steps - 1)
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{max(courses[1])} bytes of saved activations at most, {max(courses[0])} without checkpointing")
        print(f"{state} bytes of optimizer state in CPU memory, {copied} bytes copied between it and the device a step")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {nbytes / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": nbytes, "difference": largest}
            result |= {"saved": [max(course) for course in courses], "state": state, "copied": copied}
            Path(options.json).write_text(json.dumps(result))
        if options.picture:
            draw(options.picture, losses, courses)


def draw(path: str, losses: list[float], courses: list[list[int]]) -> None:
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no screen

    left, right = (figure := Figure(figsize=(10, 4), layout="constrained")).subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="cross entropy of a character")
    for course, label in zip(courses, ("without checkpointing", "with checkpointing"), strict=True):
        right.plot(course, label=label)
    right.set(xlabel="tensors saved and dropped, forward and backward", ylabel="bytes of saved activations on a rank")
    right.legend()
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"steps": 100, "layers": 4, "width": 48, "rows": 16, "length": 48}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    parser.add_argument("--second-copy", action="store_true", help="copies for the CPU's optimizer on a CPU, too")
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the loss and the saved activations into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
