"""DistributedOptimizer(op=Adasum): each rank steps with its own gradients, then the changes are combined by Adasum.

That is Horovod's variant for optimizers with momenta. Of two changes of a parameter Adasum takes the sum where they are
orthogonal and the mean where they are parallel, so that no learning rate has to be scaled with the number of ranks.
Momenta stay each rank's own.

Source: Maleki, Musuvathi, Mytkowicz et al., Scaling Distributed Training with Adaptive Summation, MLSys 2021,
arXiv:2006.02924; Horovod's adasum_user_guide.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ringreduce.collectives.ops import Adasum
from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.collectives.allreduce import grouped_allreduce
from ringreduce.torch.gradient_reduction import Stateful
from ringreduce.torch.optimizer.distributed_optimizer import DistributedMixin
from ringreduce.torch.optimizer.reducer import Settings
from ringreduce.torch.tracing import STEP, untraced


def check_adasum(settings: Settings, shard_step: bool) -> None:
    """Raises InvalidArgumentError for what has no meaning where gradients are not reduced."""
    if shard_step:
        raise InvalidArgumentError("shard_step=True supports op Average and Sum")
    if isinstance(settings.compression, Stateful):
        raise InvalidArgumentError("op=Adasum takes Compression.none, fp16 or bf16")
    if settings.groups:
        raise InvalidArgumentError("op=Adasum combines the change of each parameter by itself; pass no groups")


class AdasumMixin(DistributedMixin):
    """Comes before the user's class in the class of the result."""

    def _extend(self) -> None:
        """Reduces no gradients, and has a number of ranks that Adasum cannot do refused before the first step."""
        if self._is_shared():
            self._combine([torch.zeros(1, device="cpu")])
        if self._progress.is_compared:
            self._compare_anew("with new parameters")

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """See DistributedMixin. Raises InvalidArgumentError but for fused optimizers, which a scaler always steps."""
        is_fused = bool(vars(self).get("_step_supports_amp_scaling", False))
        if self._is_shared() and not is_fused:
            raise InvalidArgumentError(
                "op=Adasum: a GradScaler leaves out steps on the rank alone whose gradients overflow, and the other "
                "ranks would wait for its change: use torch.autocast with bfloat16, which needs no scaler"
            )
        return is_fused

    def _reduce_for_scaler(self) -> None:
        """Nothing: each rank steps with its own gradients."""

    def _start_state(self, parameters: list[tuple[str, torch.nn.Parameter]]) -> list[tuple[str, torch.Tensor]]:
        """None: momenta are each rank's own."""
        return []

    def _is_shared(self) -> bool:
        return bool(self._process_set.included()) and self._process_set.size() != 1

    def _combine(self, changes: list[torch.Tensor]) -> list[torch.Tensor]:
        return grouped_allreduce(
            changes, compression=self._settings.compression, op=Adasum, process_set=self._process_set
        )

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: the reduction is part of step()."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    @untraced(STEP)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The plain step with this rank's gradients; then the parameters change by Adasum of the ranks' changes.

        Raises MismatchError from then on if it ends before the changes are combined, as by an interrupt.
        """
        self._check_lost()
        plain_step = super(DistributedMixin, self).step
        if not self._is_shared():
            return plain_step(closure)
        self._compare_start("DistributedOptimizer.Adasum")
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        with torch.no_grad():
            before = [parameter.clone() for parameter in parameters]
        has_stepped = False
        try:
            result = self._plainly(plain_step, closure)
            has_stepped = True
            with torch.no_grad():
                changes = [parameter - start for parameter, start in zip(parameters, before, strict=True)]
                combined = self._combine(changes)
                for parameter, start, change in zip(parameters, before, combined, strict=True):
                    with computed_alike(parameter.device):
                        torch.add(start, change, out=parameter.data)
        except BaseException:  # the parameters may have this rank's own change; a hook of the plain step may raise, too
            self._progress.is_lost |= has_stepped or not all(map(torch.equal, parameters, before))
            raise
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the plain step(), not here again
