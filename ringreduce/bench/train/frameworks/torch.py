"""PyTorch: a loop of backward() and step() on whatever the mode makes of the model and the optimizer."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from ringreduce.bench.train import batches, models, optimizers
from ringreduce.bench.train.frameworks.framework import Framework, Learner

if TYPE_CHECKING:
    from torch import Tensor

    from ringreduce.bench.train.modes.mode import Team
    from ringreduce.bench.train.spec import Spec


class TorchLearner(Learner):
    """A process that is alone computes part after part what N ranks compute at once.

    So batch norm normalises over the same samples, and the losses of all modes are the same but for rounding.
    """

    def __init__(self, spec: Spec, team: Team, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.threads = torch.get_num_threads()
        self.team = team
        self.batches = batches.make(spec)
        model = models.make(spec.model, spec.seed)
        self.nbytes = sum(parameter.nbytes for parameter in model.parameters())
        self.model, self.optimizer = team.wrap(model, optimizers.make(spec.optimizer, model.parameters(), spec.lr))

    def count(self, parts: int) -> int:
        """See Learner."""
        return self.batches.count(parts)

    def step(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        self.optimizer.zero_grad()
        loss = 0.0
        for part in mine:
            share = self._share(number, part, parts)
            (share * self.team.loss_factor).backward()  # type: ignore[no-untyped-call, unused-ignore]
            loss += share.item()
        self.optimizer.step()
        return loss

    def loss(self, number: int, parts: int, mine: range) -> float:
        """See Learner."""
        import torch

        with torch.no_grad():
            return sum(self._share(number, part, parts).item() for part in mine)

    def _share(self, number: int, part: int, parts: int) -> Tensor:
        import torch

        inputs, labels = self.batches.part(number, part, parts)
        total = torch.nn.functional.cross_entropy(self.model(inputs), labels, reduction="sum")
        return total / self.batches.count(parts)


class Torch(Framework):
    """The only one that has the resnets."""

    name = "torch"
    title = "PyTorch"
    packages = ("torch",)
    install = "'ringreduce[torch]'"
    models = ("lenet", "mlp", "resnet18", "resnet50")
    vs = "single,single-all,ddp-gloo,horovod"

    def versions(self) -> dict[str, str]:
        """See Framework."""
        return {"torch": metadata.version("torch")}

    def learner(self, spec: Spec, team: Team, threads: int) -> Learner:
        """See Framework."""
        return TorchLearner(spec, team, threads)
