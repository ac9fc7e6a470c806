"""What DistributedOptimizer puts in front of a class of Keras 2: its gradients are those of all ranks.

As in Horovod, gradients are reduced where the optimizer computes them: minimize(), by which fit() trains, and
get_gradients(), by which it trains in graphs of TensorFlow 1. apply_gradients() takes what it is given, so that
gradients of a DistributedGradientTape are not reduced twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf
from tf_keras.api._v1.keras.backend import get_session

from ringreduce.errors import InvalidArgumentError
from ringreduce.keras.first_step import FirstStep
from ringreduce.keras.legacy import training
from ringreduce.keras.settings import Settings, check_local, check_variable
from ringreduce.tensorflow.aggregation import LocalAggregation
from ringreduce.tensorflow.gradients import GradientReducer
from ringreduce.tensorflow.variables import VariableRef

SCALED_PASSES = (
    "backward_passes_per_step > 1 with a LossScaleOptimizer of tf_keras: a rank whose gradients overflow in a pass "
    "would change its scale alone. Take a fixed scale (dynamic=False), Keras 3, bfloat16 without a scale, or one pass"
)


def _is_scaled(optimizer: Any) -> bool:
    """Whether a LossScaleOptimizer of tf_keras is around the optimizer, which it marks."""
    return bool(getattr(optimizer, "_is_wrapped_by_loss_scale_optimizer", False))


def _scaler(optimizer: Any) -> Any:
    """The LossScaleOptimizer around the optimizer; it is known only where it is at work: as one that calls. Or None."""
    frame: FrameType | None = sys._getframe(1) if _is_scaled(optimizer) else None
    while frame is not None:
        caller: Any = frame.f_locals.get("self")
        if getattr(caller, "inner_optimizer", None) is optimizer:
            return caller
        frame = frame.f_back
    return None


class GradientReduction:
    """The state of one DistributedOptimizer: which variables are local, and the passes that are added up."""

    def __init__(self, settings: Settings, devices: tuple[str, str], local_layers: Sequence[Any] = ()) -> None:
        """
        Args:
            devices: for dense and for sparse gradients.
        """
        self.settings = settings
        self.devices = devices
        self.local_layers = list(local_layers)
        self.local_variables: list[Any] = []
        self.first_step = FirstStep(training, settings, self.local)
        self.reduce = GradientReducer(
            settings.name,
            *devices,
            settings.compression,
            settings.sparse_as_dense,
            settings.op,
            settings.gradient_predivide_factor,
            settings.groups,
            settings.process_set,
        )
        self.aggregation: LocalAggregation | None = None
        if settings.backward_passes_per_step > 1:
            self.aggregation = LocalAggregation(
                settings.backward_passes_per_step,
                self.over_ranks,
                settings.sparse_as_dense,
                settings.average_aggregated_gradients,
            )

    def another(self) -> GradientReduction:
        """One of the same settings and with the same local variables, for another optimizer."""
        made = GradientReduction(self.settings, self.devices, self.local_layers)
        made.local_variables += self.local_variables
        return made

    def over_ranks(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The gradients of all ranks; those of local variables divided by the number of ranks. Collective."""
        return self.reduce.with_local(
            gradients, variables, {VariableRef(one) for one in self.local()}, self.settings.scale_local_gradients
        )

    def local(self) -> list[Any]:
        """The variables that are each rank's own."""
        return self.local_variables + [v for layer in self.local_layers for v in layer.trainable_weights]


class DistributedMixin:
    """Comes before the user's class in the class of the result; super() is that class."""

    _plain: type
    _reduction: GradientReduction
    _agg_helper: LocalAggregation | None
    """Horovod's name: what adds up gradients of several passes, with its `counter`."""

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable's gradient out of the reduction: each rank has its own value of the variable.

        The gradient is divided by the number of ranks, unless scale_local_gradients=False was given. Raises
        InvalidArgumentError for what is no variable.
        """
        check_variable(training, var, "register_local_var()")
        self._reduction.local_variables.append(var)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[tuple[Any, Any]]:
        """The optimizer's gradients of a loss, reduced, with their variables. Collective.

        Args:
            loss: a function without arguments; or a tensor, with the tape that has recorded it.
            var_list: the variables, or a function that gives them.
        """
        return self._compute_gradients(loss, var_list, None, tape)

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[tuple[Any, Any]]:
        parent: Any = super()
        if hasattr(parent, "_compute_gradients"):  # of tf_keras.optimizers.legacy
            pairs = parent._compute_gradients(loss, var_list, grad_loss, tape=tape)
        else:
            pairs = parent.compute_gradients(loss, var_list, tape=tape)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        return list(zip(self._allreduce(gradients, variables), variables, strict=True))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """The optimizer's gradients of a loss in a graph of TensorFlow 1, reduced. Collective."""
        parent: Any = super()
        return self._allreduce(parent.get_gradients(loss, params), params)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **kwargs: Any) -> Any:
        """The optimizer's, with gradients as they are given; with several passes to a step, after every n-th pass."""
        parent: Any = super()
        if self._agg_helper is None:
            return parent.apply_gradients(grads_and_vars, *args, **kwargs)
        me: Any = self
        pairs = list(grads_and_vars)
        return self._agg_helper.apply(
            lambda: parent.apply_gradients(pairs, *args, **kwargs),
            [gradient for gradient, _ in pairs],
            lambda: me.iterations.assign_add(1, read_value=False),
        )

    def _check(self, variables: Sequence[Any], scaler: Any) -> None:
        """Raises InvalidArgumentError where what ranks share would depend on gradients that each has for itself.

        Args:
            scaler: _scaler() of this optimizer.
        """
        process_set = self._reduction.settings.process_set
        if not process_set.included() or process_set.size() == 1:
            return
        is_scaled = _is_scaled(self) and getattr(scaler, "dynamic", True)
        if is_scaled and self._agg_helper is not None:
            raise InvalidArgumentError(SCALED_PASSES)
        local = {VariableRef(one) for one in self._reduction.local()}
        if local.isdisjoint(map(VariableRef, variables)):
            return
        check_local(self)
        if is_scaled:
            raise InvalidArgumentError(
                "local variables (register_local_var(), local_layers) with a LossScaleOptimizer of tf_keras: a rank "
                "whose own local gradients overflow would leave out a step alone. Take a fixed scale (dynamic=False), "
                "Keras 3, or bfloat16 without a scale"
            )

    def _allreduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        scaler = _scaler(self)
        self._check(variables, scaler)
        if tf.executing_eagerly():
            self._reduction.first_step.before_apply(self if scaler is None else scaler, variables)
        if self._agg_helper is None:
            return self._reduction.over_ranks(list(gradients), list(variables))
        is_first = self._agg_helper.counter is None
        given = self._agg_helper.add(list(gradients), list(variables))
        if is_first and not tf.compat.v1.executing_eagerly_outside_functions():
            # Keras's session, in which fit() runs, initializes only the variables that Keras has made.
            get_session().run(tf.compat.v1.variables_initializer(self._agg_helper.variables))
        return given
