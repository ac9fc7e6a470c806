"""Keras's dynamic loss scaling among several ranks: all of them leave out the same steps.

A LossScaleOptimizer looks at the gradients before the optimizer inside it does. Each rank would judge its own, and one
that leaves a step out would leave the others waiting in the reduction. So what it sees is agreed upon.
"""

from __future__ import annotations

from typing import Any

import keras

from ringreduce.keras.distributed import DistributedMixin
from ringreduce.keras.gradient_reduction import GradientReduction

Plain = keras.optimizers.LossScaleOptimizer
_check_finite = Plain.check_finite


def _agreed(reduction: GradientReduction, finite: Any) -> Any:
    return reduction.all_true(finite) if reduction.is_needed() else finite


class LossScaleMixin:
    """Comes before LossScaleOptimizer's class in a DistributedOptimizer made of one. Its inner optimizer reduces."""

    _plain: type
    _reduction: GradientReduction

    def register_local_var(self, var: Any) -> None:
        """As of any DistributedOptimizer."""
        self._reduction.register_local(var)

    def check_finite(self, grads: Any) -> Any:
        """Whether the gradients of all ranks are finite. Collective."""
        return _agreed(self._reduction, _check_finite(self, grads))


def watch() -> None:
    """Has every LossScaleOptimizer around a DistributedOptimizer agree likewise; others are left as they are.

    model.compile() makes one when the policy is mixed_float16, where nobody could hand it another class.
    """
    Plain.check_finite = _check_finite_of_all


def _check_finite_of_all(self: Any, grads: Any) -> Any:
    inner = self.inner_optimizer
    finite = _check_finite(self, grads)
    return _agreed(inner._reduction, finite) if isinstance(inner, DistributedMixin) else finite


_check_finite_of_all.__doc__ = _check_finite.__doc__
