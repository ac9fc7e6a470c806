"""Some of a model's parameters, which LocalSGD averages together."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.collectives.ops import Average
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch import gradient_reduction
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.compression import NoneCompressor, way_for
from ringreduce.torch.functions import broadcast_parameters
from ringreduce.torch.gradient_reduction import Channel
from ringreduce.torch.local_sgd.outer import ElasticAveraging, Outer


class Fragment:
    """Parameters of a rank, and what all ranks had of them after the last averaging.

    Nothing is written to the parameters before all ranks' values are there: a rank that dies, or a timeout, leaves them
    as they were.

    Args:
        name: of its operations, the same on all ranks.
        parameters: of this rank.
        outer: from the argument of LocalSGD; None: plain averaging.
        mix: how much of its own parameters a rank keeps.
        compression: as in DistributedOptimizer.
    """

    def __init__(
        self,
        name: str,
        parameters: list[torch.nn.Parameter],
        outer: Outer | None,
        mix: float,
        compression: Any,
        process_set: ProcessSet,
    ) -> None:
        self._name = name
        self._parameters = parameters
        self._mix = mix
        self._pull: float | None = outer.beta / len(process_set.ranks) if isinstance(outer, ElasticAveraging) else None
        self.is_plain = outer is None and compression is NoneCompressor
        """Plain averages of the parameters themselves need no copy of what there was before."""
        self._outer_of = outer or (lambda common: torch.optim.SGD(common, lr=1.0))
        self._common: list[torch.nn.Parameter] = []
        self._outer: torch.optim.Optimizer | None = None
        self._channel = Channel(process_set, Average, 1.0, 1.0)
        self._way = way_for(compression, [p.dtype for p in parameters], self._channel)
        self._exchange = gradient_reduction.make(*self._way)
        self._sent: list[torch.Tensor] = []
        self._present = torch.zeros(0, device="cpu")
        self._work: Any = None
        self.due: int | None = None
        """In which step an averaging that has begun is to be used; None: none has."""
        self.applied = 0
        """How many have been used."""

    def start(self) -> None:
        """Takes this rank's parameters as what all ranks have; share() makes it so where they are not."""
        if not self.is_plain:
            self._common = [torch.nn.Parameter(p.detach().clone()) for p in self._parameters]
            self._outer = self._outer_of(self._common)

    def share(self) -> None:
        """Gives all ranks the first one's of what all have. Collective; nobody has joined."""
        process_set = self._channel.process_set
        named = [(f"{self._name}.common.{number}", m) for number, m in enumerate(self._common)]
        with torch.no_grad():
            broadcast_parameters(named, process_set.ranks[0], process_set)

    def begin(self, due: int) -> None:
        """Starts an averaging, which is to be used in that step."""
        self.due = due
        with torch.no_grad():
            if self.is_plain:
                self._sent = [p.detach().clone() for p in self._parameters]
            else:
                self._sent = [m - p for m, p in zip(self._common, self._parameters, strict=True)]
        self._present = torch.ones(1, dtype=torch.float64, device="cpu")
        self._exchange.begin(self._sent, self._name)
        self._work = self._channel.allreduce([self._present], f"{self._name}.present")

    def arrive(self) -> None:
        """Waits until all ranks' values are there."""
        if self._work is None:
            return
        self._exchange.finish()
        self._work.wait()
        self._work = None
        ranks = len(self._channel.process_set.ranks)
        there = round(self._present.item() * ranks)  # a mean of ones may be a little less than one
        if there < ranks:  # those that have joined have sent zeros, by which an average is divided nevertheless
            for tensor in self._sent:
                with computed_alike(tensor.device):
                    tensor.div_(there / ranks)

    def apply(self, share: float | None = None) -> None:
        """Waits for the averaging, and takes what it gives.

        share: how far the parameters go to what all ranks have then, 0 to 1; None: as the arguments say.
        """
        self.arrive()
        with torch.no_grad():
            targets, way = self._sent, 1 - self._mix
            if not self.is_plain:
                before = [m.detach().clone() for m in self._common] if self._pull is not None else []
                self._step_outer(is_due=share != 1)
                targets = [m.detach() for m in self._common]
                if self._pull is not None and share is None:
                    targets, way = before, self._pull
            way = way if share is None else share
            for parameter, target in zip(self._parameters, targets, strict=True):
                if way == 1:
                    parameter.copy_(target)
                elif way != 0:
                    parameter.lerp_(target, way)
        self.due, self._sent = None, []
        self.applied += 1

    def reset(self) -> None:
        """Leaves an averaging that has begun unused, and forgets what compression has left out."""
        if self._work is not None:
            self._exchange.wait()  # no second part, which after a join() other ranks need not take
            self._work.wait()
            self._work = None
        self.due, self._sent, self._common, self._outer, self.applied = None, [], [], None, 0
        self._exchange = gradient_reduction.make(*self._way)

    def _step_outer(self, is_due: bool) -> None:
        """Only if due where nothing has changed, as no step has followed the last averaging: momentum would move m."""
        assert self._outer is not None
        for m, change in zip(self._common, self._sent, strict=True):
            m.grad = change
        # Products, norms and sums of bfloat16 depend on the number of threads, and ranks may have other numbers. A
        # denormal change is none for a thread that takes denormal numbers for zero.
        with computed_alike(torch.device("cpu")):
            if is_due or any(bool(change.any()) for change in self._sent):
                self._outer.step()
        for m in self._common:
            m.grad = None

    def state_dict(self, is_lost: bool = False) -> dict[str, Any]:
        """What this rank needs to go on. Waits for an averaging that has begun; is_lost: without one, as it never ends.

        Nothing of an averaging has been applied before all of it is there, so the state without it is whole; but one
        rank may have applied the averaging in which another one has lost a peer.
        """
        if not is_lost:
            self.arrive()
        return {
            "common": [m.detach().clone() for m in self._common],
            "outer": self._outer.state_dict() if self._outer is not None else None,
            "exchange": self._exchange.state_dict(),
            "applied": self.applied,
            "due": None if is_lost else self.due,
            "averages": [] if is_lost else [tensor.clone() for tensor in self._sent],
        }

    def check(self, state: dict[str, Any]) -> None:
        """Raises InvalidArgumentError where a state is not of such a fragment."""
        mine = [tuple(p.shape) for p in self._parameters]
        expected = {"common": [] if self.is_plain else mine, "averages": [] if state["due"] is None else mine}
        for name, shapes in expected.items():
            if (found := [tuple(tensor.shape) for tensor in state[name]]) != shapes:
                raise InvalidArgumentError(f"LocalSGD: the state has {name} of shapes {found}, not {shapes}"[:1000])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there; check() and reset() come before."""
        self.start()
        with torch.no_grad():
            for m, saved in zip(self._common, state["common"], strict=True):
                m.copy_(saved)
        if self._outer is not None:
            self._outer.load_state_dict(state["outer"])
        self._exchange.load_state_dict(state["exchange"])
        self.due, self.applied = state["due"], state["applied"]
        parameters = self._parameters if state["averages"] else []
        self._sent = [saved.to(p.device, copy=True) for saved, p in zip(state["averages"], parameters, strict=True)]
