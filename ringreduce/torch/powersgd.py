"""Compression.powersgd: a matrix of gradients as the product of two thin ones, found by one step of power iteration.

For each matrix M = gradient + error (n x m, all dimensions but the first as one): P = M Q, reduced; P is made
orthonormal; Q = M' P, reduced; the result is P Q'. Both reductions are linear, so they are plain all-reduces, of
r (n + m) elements instead of n m. Q starts the next step. Each rank keeps error = M - P (its own Q)', so that over the
steps nothing is lost. Vectors, and matrices that would not become min_ratio times smaller, travel as they are.

After join() ranks have made other numbers of reductions, and have other Qs. The first reduction after it travels as it
is, with the largest of these numbers, from which all go on; Q begins anew, and what was left out stays. A rank that
joins between the two reductions has given its part to P and gives none to Q: that is an error.

Every rank makes P orthonormal, and P Q', from the same bits. For all to end with the same bits it does so with one
thread, in one mode (alike.py): ranks may have other numbers of threads, and results depend on them.

Source: Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization,
NeurIPS 2019, arXiv:1905.13727.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce._core import Work
from ringreduce.collectives.ops import Average, Max, Sum
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.gradient_reduction import Channel, Stateful


class PowerSGD(Stateful):
    """Rank-r gradients.

    Args:
        rank: r, columns of P and Q.
        start_step: reductions before this one travel as they are: early gradients have no low rank yet.
        min_ratio: a matrix is compressed if that makes it at least so many times smaller.
        seed: of the first Q, the same on all ranks.

    Raises:
        InvalidArgumentError: rank is not positive; or, when the optimizer is made, op is not Average or Sum.

    >>> hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.powersgd(rank=2, start_step=100))
    """

    def __init__(self, rank: int = 2, start_step: int = 0, min_ratio: float = 2.0, seed: int = 0) -> None:
        if rank <= 0:
            raise InvalidArgumentError(f"Compression.powersgd: rank is a positive number, not {rank}")
        self.rank = rank
        self.start_step = start_step
        self.min_ratio = min_ratio
        self.seed = seed

    def exchange(self, channel: Channel) -> PowerSGDExchange:
        """See Stateful."""
        if channel.op not in (Average, Sum):
            raise InvalidArgumentError("Compression.powersgd supports op Average and Sum")
        return PowerSGDExchange(self, channel)

    def __repr__(self) -> str:
        return f"powersgd(rank={self.rank}, start_step={self.start_step}, min_ratio={self.min_ratio}, seed={self.seed})"


class PowerSGDExchange:
    """An Exchange; errors and Qs are by the gradient's place in the bucket, float32."""

    def __init__(self, settings: PowerSGD, channel: Channel) -> None:
        self._settings = settings
        self._channel = channel
        self._gradients: Sequence[torch.Tensor] = ()
        self._name = ""
        self._whole: list[tuple[torch.Tensor, torch.Tensor]] = []  # (gradient, what travels)
        self._matrices: dict[int, torch.Tensor] = {}
        self._ps: dict[int, torch.Tensor] = {}
        self._works: list[Work] = []
        # How many join()s had ended when all ranks last had the same step and Qs; None: they had not when it was saved.
        self._joins: int | None = channel.process_set.joins
        self._begun_joins = self._joins  # how many had ended when the reduction began
        self._begun_apart = False  # it is the first one after a join()
        self._steps = torch.zeros(0, device="cpu")  # the largest of the ranks', in the first reduction after a join()
        self._there = torch.zeros(0, device="cpu")  # a one of each rank, reduced with P
        self.step = 0
        self.errors: dict[int, torch.Tensor] = {}
        self.qs: dict[int, torch.Tensor] = {}

    def begin(self, gradients: Sequence[torch.Tensor], name: str) -> None:
        """See Exchange: starts the reductions of P, and of what travels as it is."""
        self._forget_reduction()  # where finish() has raised
        self._gradients, self._name = gradients, name
        is_apart = self._begun_apart = self._is_apart()
        self._begun_joins = self._channel.process_set.joins
        if is_apart:
            channel = self._channel._replace(op=Max, prescale=1.0, postscale=1.0)
            self._steps = torch.tensor([self.step], device="cpu")
            self._works.append(channel.allreduce([self._steps], f"{name}.step"))
        for at, gradient in enumerate(gradients):
            if is_apart or self.step < self._settings.start_step or not self._is_worth_it(gradient):
                self._whole.append((gradient, gradient.contiguous()))
                continue
            matrix = gradient.reshape(gradient.shape[0], -1).float()
            # On the gradient's device, which a checkpoint need not have been loaded to.
            self._matrices[at] = matrix + self.errors[at].to(matrix.device) if at in self.errors else matrix
            self._ps[at] = self._matrices[at] @ self._first_or_last_q(at, matrix)
        if self._whole:
            self._works.append(self._channel.allreduce([sent for _, sent in self._whole], f"{name}.whole"))
        if self._ps:
            ps = list(self._ps.values())
            self._there = torch.ones(1, dtype=torch.float32, device=ps[0].device)
            self._works.append(self._channel.allreduce([*ps, self._there], f"{name}.p"))

    def wait(self) -> None:
        """See Exchange."""
        for work in self._works:
            work.wait()

    def finish(self) -> None:
        """See Exchange: reduces Q. Raises MismatchError where a rank has joined since begin()."""
        self.wait()
        for gradient, sent in self._whole:
            if sent is not gradient:
                gradient.copy_(sent)
        if self._begun_apart:
            self.step, self.qs = int(self._steps.item()), {}
            self._joins = self._begun_joins
        self.step += 1
        if self._ps:
            self._finish_compressed()
        self._forget_reduction()

    def _finish_compressed(self) -> None:
        if self._begun_joins != self._channel.process_set.joins:
            raise _joined_between()
        own = {}
        finite = {at: bool(p.isfinite().all()) for at, p in self._ps.items()}  # the same on all ranks
        for at, p in self._ps.items():
            with computed_alike(p.device):
                self._ps[at] = torch.linalg.qr(p).Q.contiguous() if finite[at] else p
            own[at] = self._matrices[at].t() @ self._ps[at]
        qs = {at: q.clone(memory_format=torch.contiguous_format) for at, q in own.items()}
        there = torch.ones_like(self._there)
        self._channel.allreduce([*qs.values(), there], f"{self._name}.q").wait()
        # Both are numbers of ranks times the factor: what they differ by is rounding, or the share of a rank.
        if 2 * abs(float(there - self._there)) > abs(self._channel.factor):
            raise _joined_between()
        for at, q in qs.items():
            if finite[at]:
                self.errors[at] = self._matrices[at] - self._ps[at] @ own[at].t()
                self.qs[at] = q
            else:  # an infinity or a NaN reaches the result, for whoever looks for it there, and nothing else
                self.qs.pop(at, None)
            gradient = self._gradients[at]
            with computed_alike(q.device):
                product = self._ps[at] @ q.t()
                gradient.copy_(product.view(gradient.shape))  # which the matrix may be a view of

    def _forget_reduction(self) -> None:
        """Frees what is as large as the gradients before the next forward and backward need the memory."""
        self._gradients, self._whole, self._matrices, self._ps, self._works = (), [], {}, {}, []

    def _is_apart(self) -> bool:
        """Whether ranks may have other steps and Qs: since a join() that has ended, so the same on all ranks."""
        return self._joins != self._channel.process_set.joins

    def _is_worth_it(self, gradient: torch.Tensor) -> bool:
        if gradient.dim() < 2 or not gradient.numel() or not gradient.is_floating_point():
            return False
        rows = gradient.shape[0]
        columns = gradient.numel() // rows
        return (rows + columns) * self._settings.rank * self._settings.min_ratio <= rows * columns

    def _first_or_last_q(self, at: int, matrix: torch.Tensor) -> torch.Tensor:
        if at not in self.qs:
            # The same on all ranks, whatever their default dtypes and devices are.
            generator = torch.Generator("cpu").manual_seed(self._settings.seed + at)
            shape = (matrix.shape[1], self._settings.rank)
            self.qs[at] = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        self.qs[at] = self.qs[at].to(matrix.device)
        return self.qs[at]

    def state_dict(self) -> dict[str, Any]:
        """See Exchange."""
        is_apart = self._is_apart()
        return {"step": self.step, "errors": dict(self.errors), "qs": dict(self.qs), "is_apart": is_apart}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See Exchange."""
        self.step = state["step"]
        self._joins = None if state.get("is_apart") else self._channel.process_set.joins
        self.errors = {at: error.clone() for at, error in state["errors"].items()}
        self.qs = {at: q.clone() for at, q in state["qs"].items()}


def _joined_between() -> MismatchError:
    return MismatchError(
        "a rank has called join() after the first part of a PowerSGD reduction and before the second, so its share is "
        "in one and not in the other, and the result is not used: call join() after optimizer.step(), not between "
        "backward() and step(); with LocalSGD, where an averaging lasts some steps, take overlap=0"
    )
