# ringrun -np 4 python examples/parallel/mesh.py --mesh 2 2 --steps 400 --check
"""Trains a transformer on a mesh of ranks, data parallel along one axis and tensor parallel along the other.

A mesh of DxT ranks is D copies of the model, each split over T ranks: rank d * T + t holds part t of copy d. Each row
is a process set, which trains on 1/D of the batch by the model and the functions of tensor_parallel.py. Each column is
one, whose ranks hold the same part, and averages gradients once a step. Tensor parallelism communicates in every layer,
so consecutive ranks do it, which share a host: Narayanan et al. 2021. Rows do not wait for each other, nor do columns.

bytes_moved counts 4 * layers all-reduces of rows / D * length * width * 8 bytes in the row, and in the column one of
the rank's parameters and the loss, 8 bytes each. It counts groups of one rank, too, which send nothing.
"""

import argparse
import json
from pathlib import Path

import torch
from tensor_parallel import TOLERANCE, CopyToRanks, SumOverRanks, Trainer, difference, draw, loss_of, make, part
from text import batch, characters

import ringreduce.torch as hvd


def own_group(groups: list[list[int]]) -> hvd.ProcessSet:
    """Registers process sets, on all ranks in the same order, and returns the one that this rank is in."""
    sets = [hvd.global_process_set if len(ranks) == hvd.size() else hvd.add_process_set(ranks) for ranks in groups]
    return next(one for one in sets if one.included())


class DataParallelTrainer(Trainer):
    """Averages gradients and loss over the ranks that hold the same part."""

    column: hvd.ProcessSet

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        gradients = [parameter.grad for parameter in self.parameters.values()]
        hvd.grouped_allreduce_([loss, *gradients], op=hvd.Average, process_set=self.column)
        return loss


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
    f, g = lambda x: CopyToRanks.apply(x, row), lambda x: SumOverRanks.apply(x, row)
    split = DataParallelTrainer(own, lambda p, data: loss_of(p, data, options.heads // parts, f, g))
    split.column = column
    alone = Trainer(whole, lambda p, data: loss_of(p, data, options.heads, lambda x: x, lambda x: x))
    losses, losses_alone, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        mine = [tensor.chunk(copies)[column.rank()] for tensor in data]
        before = hvd.stats()["bytes_moved"]
        losses.append(split.step(mine))
        nbytes += hvd.stats()["bytes_moved"] - before
        if options.check:
            losses_alone.append(alone.step(data))
            of_alone = {name: part(name, tensor, row) for name, tensor in alone.parameters.items()}
            found = difference(split.parameters, of_alone, (losses[-1], losses_alone[-1]))
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
