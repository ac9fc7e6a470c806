"""How far a DistributedOptimizer has come, in one object.

Lightning's and Fabric's wrappers take on the optimizer's class, find its attributes by __getattr__ (or by a copy of its
__dict__), and leave step() to the optimizer. So the other methods run with the wrapper as `self`: what they assigned to
it would be unknown to step(). They write to this object instead, which is made once and is the same for both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ringreduce._core import Work
from ringreduce.common.same_start import OPTIMIZER
from ringreduce.torch.optimizer.kept_gradients import LOOKS


@dataclass(slots=True)
class Progress:
    """What changes from round to round.

    passes: backward() calls before a step.
    joins: how many join()s had ended when the ranks compared what they start from.
    synchronized: synchronize() has reduced the gradients.
    should_synchronize: step() is not within skip_synchronize().
    clipped: the gradients are reduced, and the next step() uses them as they are.
    scaled: likewise; it was for a GradScaler.
    is_doubtful: there was no step() and no reduction since clip_grad_norm_(), so all ranks agree whether there is one.
    is_compared: the ranks have compared what they start from, or go on from.
    compares: who does it, for the report.
    is_extending: parameters are being added; still so after that was interrupted.
    is_lost: a step() was interrupted where it cannot be taken up.
    idle: parameters that required no gradient when last looked at.
    looks: at the optimizer's state that are left, for gradients that it keeps.
    keeps_gradients: one was found, so parameters have gradients of their own, whatever gradient_as_bucket_view is.
    under_way: with shard_step=True, shares that come from other ranks.
    is_updated: and with them, the step is done.
    """

    passes: int
    joins: int
    synchronized: bool = False
    should_synchronize: bool = True
    clipped: bool = False
    scaled: bool = False
    is_doubtful: bool = False
    is_compared: bool = False
    compares: str = OPTIMIZER
    is_extending: bool = False
    is_lost: bool = False
    idle: list[torch.nn.Parameter] = field(default_factory=list)
    looks: int = LOOKS
    keeps_gradients: bool = False
    under_way: list[Work] = field(default_factory=list)
    is_updated: bool = False

    def use(self) -> None:
        """Takes note that the gradients are used now, or that others have been reduced."""
        self.clipped = self.scaled = self.is_doubtful = False
