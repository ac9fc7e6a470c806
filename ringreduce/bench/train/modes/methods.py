"""ringreduce with less to send: gradients in fewer bytes, or parameters that are averaged every H steps.

docs/user/methods.md says what each method changes in the result. Each rank has the loss of its own share, as the ranks
of a script have, and the ranks average: gradients in each step, or parameters, where each rank keeps the learning rate
for its own batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ringreduce
from ringreduce.bench.train.modes.independent import Connected
from ringreduce.bench.train.modes.mode import Mode, Team

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ringreduce.bench.train.spec import Spec


FRAGMENTS = 4


class Method(Mode):
    """Under ringrun, as the mode ringreduce. Its loss is not that of one process: before the first step only."""

    is_reduced = False
    frameworks = ("torch",)
    averages = False
    """Whether parameters are averaged every H steps."""
    least_every = 1
    """The fewest steps between two averagings."""

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """What wraps the optimizer, of hvd = ringreduce.torch. every: steps between two averagings."""
        raise NotImplementedError

    def join(self, spec: Spec) -> Team:
        """See Mode."""
        world = ringreduce.init()
        return Averaging(world.rank, world.size, self, spec.every)


class Averaging(Connected):
    """Ranks that train by a method."""

    def __init__(self, rank: int, size: int, method: Method, every: int) -> None:
        super().__init__(rank, size)
        self.loss_factor = float(size)
        self._method = method
        self._every = every

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """See Team."""
        import ringreduce.torch as hvd

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._method.optimizer(hvd, optimizer, self._every)


class Fp16(Method):
    """Gradients cross as 16-bit floats."""

    name = "fp16"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.fp16)


class Int8(Method):
    """Gradients cross in 8 bits."""

    name = "int8"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.int8())


class PowerSgd(Method):
    """Gradients cross as factors of low rank."""

    name = "powersgd"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.powersgd())


class LocalSgd(Method):
    """Parameters are averaged every H steps."""

    name = "local-sgd"
    averages = True

    def period(self, spec: Spec) -> int:
        """See Mode."""
        return spec.every

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.LocalSGD(optimizer, every)


class DiLoCo(LocalSgd):
    """The averages go through an outer optimizer."""

    name = "diloco"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.LocalSGD(optimizer, every, outer=hvd.diloco())


class Streaming(LocalSgd):
    """DiLoCo in four fragments, each of which is sent while the ranks compute."""

    name = "streaming"
    least_every = FRAGMENTS

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        outer, overlap = hvd.diloco(), max(1, every // 10)
        return hvd.LocalSGD(optimizer, every, outer=outer, fragments=FRAGMENTS, overlap=overlap, mix=0.5)


class SlowMo(LocalSgd):
    """The averages have a momentum."""

    name = "slowmo"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.LocalSGD(optimizer, every, outer=hvd.slowmo())


class Easgd(LocalSgd):
    """Each rank is drawn towards a common center."""

    name = "easgd"

    def optimizer(self, hvd: Any, optimizer: Optimizer, every: int) -> Any:
        """See Method."""
        return hvd.LocalSGD(optimizer, every, outer=hvd.ElasticAveraging())
