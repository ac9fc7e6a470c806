"""DistributedOptimizer for the optimizers of TensorFlow 1, tf.compat.v1.train.Optimizer: eager or in graphs."""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow.aggregation import LocalAggregation
from ringreduce.tensorflow.first_step import FirstStep
from ringreduce.tensorflow.gradients import GradientReducer, local_positions
from ringreduce.tensorflow.variables import VariableRef, check_local

Scaled = tf.compat.v1.mixed_precision.MixedPrecisionLossScaleOptimizer
_LEFT_OUT_ALONE = (
    "a rank whose own gradients overflow would leave out a step alone, and the ranks' weights and scales would go apart"
)


class Wrapper(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """An optimizer that has another one, whose state is its own.

    Checkpoints (tf.train.Checkpoint) of both are alike. They ask the methods of Trackable for the state: which
    variables there are, and where the values of those are kept that only the first step will make.

    Args:
        optimizer: what updates the variables.
        name: of the wrapper. use_locking: for the base class.
    """

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._lookup_dependency(*args, **kwargs)

    @property
    def _deferred_dependencies(self) -> Any:
        self._optimizer._maybe_initialize_trackable()
        return self._optimizer._deferred_dependencies

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer._create_or_restore_slot_variable(*args, **kwargs)

    def _check_scale(self, process_set: ProcessSet, what: str | None, has_local: bool = False) -> None:
        """For compute_gradients(): raises InvalidArgumentError where a loss scale looks at a rank's own gradients.

        Nothing tells an optimizer that a scale was made around it, so this looks at what called compute_gradients().

        Args:
            process_set: the ranks that take part.
            what: the option by which compute_gradients() gives a rank's own gradients to all of the scale; or None.
            has_local: whether local variables' gradients are among them.
        """
        if not process_set.included() or process_set.size() == 1 or not (what or has_local):
            return
        caller = sys._getframe(2)
        around = caller.f_code is Scaled.compute_gradients.__code__ and caller.f_locals["self"]
        name = Scaled.__name__
        if what and _leaves_out(around):
            raise InvalidArgumentError(
                f"{name}(DistributedOptimizer(..., {what})): {_LEFT_OUT_ALONE}. Make it the other way round: "
                f"DistributedOptimizer({name}(...), {what})"
            )
        if has_local and (_leaves_out(around) or _leaves_out(self._optimizer)):
            raise InvalidArgumentError(
                f"local variables (register_local_var()) with a {name}: {_LEFT_OUT_ALONE}. Take a FixedLossScale, or "
                "bfloat16 without a scale"
            )


def _leaves_out(optimizer: Any) -> bool:
    """Whether it leaves out the steps in which gradients are not finite."""
    return isinstance(optimizer, Scaled) and optimizer._doing_dynamic_loss_scaling()


class _DistributedOptimizer(Wrapper):
    """Wraps an optimizer: gradients are reduced over the ranks, in one operation, before they are applied.

    Args:
        optimizer, name, use_locking: see Wrapper.
        reducer: of the gradients.
        backward_passes_per_step: passes whose gradients are added up before they are reduced and applied.
        sparse_as_dense: what `reducer` was made with.
        average_aggregated_gradients: whether the sums of these passes are divided by their number.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        backward_passes_per_step: int,
        sparse_as_dense: bool,
        average_aggregated_gradients: bool,
        scale_local_gradients: bool,
    ) -> None:
        super().__init__(optimizer, name, use_locking)
        self._reducer = reducer
        self._scale_local_gradients = scale_local_gradients
        self._local_vars: set[VariableRef] = set()
        self._first_step = FirstStep(name, reducer.process_set)
        self._aggregation: LocalAggregation | None = None
        if backward_passes_per_step > 1:
            self._aggregation = LocalAggregation(
                backward_passes_per_step, self._reduced, sparse_as_dense, average_aggregated_gradients
            )

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable's gradient to this rank: it is not reduced, but divided by the number of ranks.

        Raises InvalidArgumentError for what is no variable.
        """
        check_local("register_local_var()", var)
        self._local_vars.add(VariableRef(var))

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The wrapped optimizer's gradients, reduced over the ranks, with their variables. Collective.

        Raises:
            InvalidArgumentError: a MixedPrecisionLossScaleOptimizer would leave out steps on some of the ranks.
        """
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        passes = None if self._aggregation is None else "backward_passes_per_step > 1"
        self._check_scale(self._reducer.process_set, passes, bool(local_positions(variables, self._local_vars)))
        reduce = self._reduced if self._aggregation is None else self._aggregation.add
        return list(zip(reduce(grads, variables), variables, strict=True))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """The wrapped optimizer's; with backward_passes_per_step, after each n-th pass. global_step counts calls."""
        pairs = list(grads_and_vars)

        def update() -> Any:
            step = self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)
            shared = [one for grad, one in pairs if grad is not None and VariableRef(one) not in self._local_vars]
            return self._first_step.after(step, shared, self._optimizer)

        if self._aggregation is None:
            return update()

        def counted() -> Any:
            return None if global_step is None else tf.compat.v1.assign_add(global_step, 1)

        return self._aggregation.apply(update, [grad for grad, _ in pairs], counted)

    def _reduced(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        return self._reducer.with_local(grads, variables, self._local_vars, self._scale_local_gradients)
