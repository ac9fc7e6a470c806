# ringrun -np 4 python examples/parallel/mixture_of_experts.py --experts 8 --top 2 --steps 200
"""Trains a transformer whose MLP is a mixture of experts, with the experts split over the ranks: expert parallelism.

A router gives each token to the --top experts with the largest probability. With --top 1 the expert's output is scaled
by its probability (Fedus et al. 2021, Switch Transformer), with --top 2 by the softmax of the two largest logits
(Shazeer et al. 2017). A rank has its rows of the batch, and experts / p of the experts, so tokens travel: an all-to-all
with uneven splits brings each token to the rank of its expert, a second one brings the output back. Experts take
however many tokens come; there is no capacity, so no token is dropped. Both all-to-alls have a gradient, which sends
rows the other way. Everything but the experts is data-parallel: each rank holds all of it, and an all-reduce sums its
gradients. The auxiliary loss of Fedus et al. 2021, equation 4, keeps the load of the experts even.

Each token moves four times (two all-to-alls, forward and backward), as width numbers of 8 bytes for each of its
experts. bytes_moved is what a rank hands over to the collectives. Its mean over the ranks, for a step, is

    4 * top * rows * length / p * width * 8    activations
    + the gradients of what is not an expert + (2 * experts + 1) * 8    numbers of tokens, and the loss
"""

import argparse
import copy
import json
from collections.abc import Sequence

import torch
from text import batch, characters
from torch.nn.functional import cross_entropy, layer_norm, scaled_dot_product_attention

import ringreduce.torch as hvd

Data = Sequence[torch.Tensor]
HEADS = 4
TOLERANCE = 1e-10  # sums over ranks are rounded in another order, by about 1e-16 in float64


class Mixture(torch.nn.Module):
    """Experts, and the router that chooses among them; the experts lie on one rank, or as many on each of `ranks`.

    forward() returns the output, the auxiliary loss, and how many of this rank's tokens go to each expert.
    """

    def __init__(self, width: int, experts: int, top: int) -> None:
        super().__init__()
        self.top, self.ranks = top, 1
        self.router = torch.nn.Linear(width, experts, bias=False)
        self.experts = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        probabilities = self.router(x).softmax(-1)
        weights, chosen = probabilities.topk(self.top)
        if self.top > 1:
            weights = weights / weights.sum(-1, keepdim=True)  # the softmax of the largest logits alone
        counts = torch.bincount(chosen.flatten(), minlength=self.router.out_features)
        # The fractions have no gradient and are those of the whole batch. The mean probability is of this rank's
        # tokens: the mean of the ranks' auxiliary losses is then that of the whole batch.
        everywhere = hvd.allreduce(counts, op=hvd.Sum) if self.ranks > 1 else counts
        auxiliary = len(counts) * (everywhere / everywhere.sum() * probabilities.mean(0)).sum()
        outputs = self.exchanged(x, chosen, counts) if self.ranks > 1 else self.local(x, chosen)
        return (outputs * weights.unsqueeze(2)).sum(1), auxiliary, counts

    def local(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """What each token's experts give: (tokens, top, width)."""
        outputs = x.new_zeros(*chosen.shape, x.shape[1])
        for number, expert in enumerate(self.experts):
            outputs[chosen == number] = expert(x[(chosen == number).any(1)])
        return outputs

    def exchanged(self, x: torch.Tensor, chosen: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The same by experts on all ranks."""
        order = chosen.flatten().argsort(stable=True)  # by expert, and so by rank
        arrived, from_rank = hvd.alltoall(x[order // self.top], splits=counts.view(self.ranks, -1).sum(1))

        # What arrives is sorted by source rank, then by expert. own[r, e]: how many rows rank r has sent to expert e.
        own = hvd.alltoall(counts).view(self.ranks, -1)
        expert_of = torch.arange(len(self.experts)).repeat(self.ranks).repeat_interleave(own.flatten())
        by_expert = expert_of.argsort(stable=True)
        parts = arrived[by_expert].split(own.sum(0).tolist())
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        returned, _ = hvd.alltoall(done[by_expert.argsort()], splits=from_rank)
        return returned[order.argsort()].view(*chosen.shape, -1)


class Model(torch.nn.Module):
    """One transformer block with causal attention. forward() returns the cross entropy, and what Mixture does."""

    def __init__(self, kinds: int, length: int, width: int, experts: int, top: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(kinds, width)
        self.position = torch.nn.Parameter(torch.randn(length, width) * 0.1)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width)
        self.mixture = Mixture(width, experts, top)
        self.head = torch.nn.Linear(width, kinds)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.embedding(inputs) + self.position
        heads = self.qkv(layer_norm(x, x.shape[-1:])).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        tokens = x.flatten(0, 1)
        mixed, auxiliary, counts = self.mixture(layer_norm(tokens, tokens.shape[-1:]))
        scores = self.head(layer_norm(tokens + mixed, tokens.shape[-1:]))
        return cross_entropy(scores, targets.flatten()), auxiliary, counts


def train(model: Model, optimizer: torch.optim.Optimizer, data: Data, balance: float) -> tuple[float, torch.Tensor]:
    """A step. Returns the loss of the whole batch, and how many of this rank's tokens went to each expert."""
    optimizer.zero_grad()
    loss, auxiliary, counts = model(*data)
    # The gradient of the all-to-all brings an expert's gradients from all ranks, and the expert adds them up. So the
    # loss is divided by the number of ranks here, and the gradients of all other parameters are summed, too.
    ((loss + balance * auxiliary) / model.mixture.ranks).backward()
    if model.mixture.ranks > 1:
        shared = [parameter for name, parameter in model.named_parameters() if "experts" not in name]
        sums = hvd.grouped_allreduce([parameter.grad for parameter in shared], op=hvd.Sum)
        for parameter, grad in zip(shared, sums, strict=True):
            parameter.grad = grad
        loss = hvd.allreduce(loss.detach(), op=hvd.Average)
    optimizer.step()
    return loss.item(), counts


def main() -> None:
    options = arguments()
    hvd.init()
    ranks, rank = hvd.size(), hvd.rank()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    if options.experts % ranks or options.rows % ranks:
        raise SystemExit(f"{options.experts} experts and {options.rows} rows cannot be split over {ranks} ranks")
    text = characters()
    torch.manual_seed(1)  # the same parameters on all ranks
    whole = Model(int(text.max()) + 1, options.length, options.width, options.experts, options.top)
    part = copy.deepcopy(whole)
    twins = dict(zip(part.parameters(), whole.parameters(), strict=True))
    first, last = (options.experts // ranks * number for number in (rank, rank + 1))
    part.mixture.experts, part.mixture.ranks = part.mixture.experts[first:last], ranks
    optimizer, optimizer_alone = (torch.optim.Adam(model.parameters(), lr=0.003) for model in (part, whole))

    losses, loads, largest, nbytes = [], [], 0.0, 0
    for step in range(options.steps):
        data = batch(text, step, options.rows, options.length)
        before = hvd.stats()["bytes_moved"]
        loss, counts = train(part, optimizer, [tensor.chunk(ranks)[rank] for tensor in data], options.balance)
        nbytes += hvd.stats()["bytes_moved"] - before
        losses.append(loss)
        loads.append(hvd.allreduce(counts, op=hvd.Sum).tolist())
        if options.check:
            loss_alone, _ = train(whole, optimizer_alone, data, options.balance)
            each = [(one - twins[one]).detach().flatten() for one in part.parameters()]
            found = hvd.allgather(torch.cat([*each, torch.tensor([loss - loss_alone])])).abs().max().item()
            if not found <= TOLERANCE:  # also where it is not a number
                raise SystemExit(f"step {step}: the ranks' model differs by {found:.1e} from the model of one rank")
            largest = max(largest, found)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss:.3f}, tokens by expert {loads[-1]}", flush=True)

    mean = hvd.allreduce(torch.tensor(nbytes), op=hvd.Sum).item() / ranks / options.steps
    if rank == 0:
        if options.check:
            print(f"equal to one rank: largest difference {largest:.1e}")
        print(f"{ranks} ranks: loss {losses[-1]:.3f}, {mean / 1e3:.1f} kB a step and rank")
        if options.json:
            result = {"ranks": ranks, "losses": losses, "nbytes": mean, "difference": largest, "loads": loads}
            with open(options.json, "w") as file:
                json.dump(result, file)
        if options.picture:
            draw(options.picture, losses, loads)


def draw(path: str, losses: list[float], loads: list[list[int]]) -> None:
    from matplotlib.figure import Figure  # without pyplot it draws by Agg, and needs no screen

    left, right = (figure := Figure(figsize=(10, 4), layout="constrained")).subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="cross entropy of a character", title=f"{hvd.size()} ranks")
    right.stackplot(range(len(loads)), *zip(*loads, strict=True), labels=range(len(loads[0])), edgecolor="white")
    right.set(xlabel="step", ylabel="tokens", title="tokens by expert", xlim=(0, max(1, len(loads) - 1)))
    right.legend(title="expert", loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    figure.savefig(path, dpi=120)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"steps": 200, "experts": 8, "width": 32, "rows": 16, "length": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default %(default)s")
    parser.add_argument("--top", type=int, choices=(1, 2), default=2, help="experts of a token (default %(default)s)")
    parser.add_argument(
        "--balance", type=float, default=0.01, help="weight of the auxiliary loss (default %(default)s)"
    )
    parser.add_argument("--check", action="store_true", help="compare with a model that one rank trains alone")
    parser.add_argument("--json", help="write the result to this file")
    parser.add_argument("--picture", help="draw the loss and the tokens by expert into this PNG file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
