"""Keras's dynamic loss scaling among several ranks: all of them leave out the same steps.

A LossScaleOptimizer looks at the gradients before the optimizer inside it does. Each rank would judge its own, and one
that leaves a step out would leave the others waiting in the reduction. So what it sees is agreed upon.

Then it divides by the scale. float16 has less range than the gradients that it divides: it would make of them what the
look has not seen, infinities and zeros. So what compresses to float16 reduces before both, and the look is at the sum.
"""

from __future__ import annotations

from typing import Any

import keras

from ringreduce.common.compression import NoneCompressor
from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.distributed import DistributedMixin
from ringreduce.keras.gradient_reduction import GradientReduction

_WIDE = ("bfloat16", "float32", "float64")  # dtypes with the range of the gradients that are looked at

Plain = keras.optimizers.LossScaleOptimizer
_check_finite, _apply, _stateless_apply = Plain.check_finite, Plain.apply, Plain.stateless_apply


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
    """Has every LossScaleOptimizer around a DistributedOptimizer do likewise; others are left as they are.

    model.compile() makes one when the policy is mixed_float16, where nobody could hand it another class.
    """
    Plain.check_finite = _check_finite_of_all
    Plain.apply = _apply_of_all
    Plain.stateless_apply = _stateless_apply_of_all


def _check_finite_of_all(self: Any, grads: Any) -> Any:
    inner = self.inner_optimizer
    finite = _check_finite(self, grads)
    return _agreed(inner._reduction, finite) if isinstance(inner, DistributedMixin) else finite


def _apply_of_all(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
    inner = self.inner_optimizer
    if trainable_variables is not None:
        trainable_variables = list(trainable_variables)  # which is passed on, and may be an iterator
    variables = trainable_variables if trainable_variables or not self.built else self._trainable_variables
    if not _reduces_first(inner) or len(grads) != len(variables or ()):
        return _apply(self, grads, trainable_variables)
    scaled = inner._reduced(grads, variables)
    with inner._applying_reduced():
        return _apply(self, scaled, trainable_variables)


def _stateless_apply_of_all(self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
    inner = self.inner_optimizer
    if not self.built or not _reduces_first(inner) or len(grads) != len(self._trainable_variables):
        return _stateless_apply(self, optimizer_variables, grads, trainable_variables)
    scaled = inner._reduced(grads, self._trainable_variables)
    with inner._applying_reduced():
        return _stateless_apply(self, optimizer_variables, scaled, trainable_variables)


def _reduces_first(inner: Any) -> bool:
    """Whether the gradients have to be reduced while they are scaled: of what compresses only bfloat16 has the range.

    Raises:
        InvalidArgumentError: they would have to, and what is reduced are sums of several passes.
    """
    if not isinstance(inner, DistributedMixin) or not inner._reduction.is_needed():
        return False
    compression = inner._reduction.settings.compression
    sends_all = getattr(compression, "compress", None) is NoneCompressor.compress
    if sends_all or any(wide in str(getattr(compression, "dtype", "")) for wide in _WIDE):
        return False
    if inner._accumulates():
        raise InvalidArgumentError(
            "LossScaleOptimizer with several passes to a step (backward_passes_per_step, gradient_accumulation_steps) "
            f"and the compression {getattr(compression, '__name__', compression)}: the sums of the passes are reduced "
            "when they are unscaled and found finite, and what has the range of float16 would make infinities and "
            "zeros of them in silence; take compression=hvd.Compression.bf16, which has the range of float32, or one "
            "pass to a step; a compression of your own that has that range says so by an attribute dtype = 'float32'"
        )
    return True


for _ours, _theirs in (
    (_check_finite_of_all, _check_finite),
    (_apply_of_all, _apply),
    (_stateless_apply_of_all, _stateless_apply),
):
    _ours.__doc__ = _theirs.__doc__
