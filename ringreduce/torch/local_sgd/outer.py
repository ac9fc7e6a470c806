"""Outer optimizers of LocalSGD: what is done with the mean of the ranks' changes. Any torch optimizer will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from ringreduce.errors import InvalidArgumentError

Outer: TypeAlias = "Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]"


def diloco(lr: float = 0.7, momentum: float = 0.9) -> Outer:
    """SGD with Nesterov's momentum, as in DiLoCo (arXiv:2311.08105, section 2 and table 5)."""
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=momentum > 0)


def slowmo(momentum: float = 0.5, lr: float = 1.0) -> Outer:
    """SGD with momentum, as in SlowMo (arXiv:1910.00643, algorithm 1) with an inner learning rate that is constant.

    There u = momentum u + d / inner_lr and m = m - lr inner_lr u; the inner learning rate cancels out where it does not
    change between averagings.
    """
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum)


class ElasticAveraging:
    """Elastic averaging (EASGD, arXiv:1412.6651, equations 3 and 4), on n ranks with alpha = beta / n.

    m becomes (1 - beta) m + beta mean(x), and x becomes x - alpha (x - m) with the m from before.

    Args:
        beta: above 0, at most 1 (0.9, as in the paper).
    """

    def __init__(self, beta: float = 0.9) -> None:
        if not 0 < beta <= 1:
            raise InvalidArgumentError(f"ElasticAveraging: beta is above 0 and at most 1, not {beta!r}")
        self.beta = beta

    def __call__(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.beta)
