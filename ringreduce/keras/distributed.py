"""What DistributedOptimizer puts in front of an optimizer's class: gradients of all ranks come to its apply().

apply() is where every trainer of Keras hands gradients over: TensorFlow's by apply_gradients(), JAX's by
stateless_apply(), torch's directly. What Keras does with them there, loss scaling, clipping and weight decay included,
comes after the reduction. With gradient accumulation, Keras adds them up in apply() and clips the mean on update steps
only; so there the reduction comes just before clipping.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
from keras import ops

from ringreduce import config
from ringreduce.collectives.ops import Average
from ringreduce.common import reduced
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.keras import backend
from ringreduce.keras.gradient_reduction import GradientReduction, is_sum
from ringreduce.keras.settings import check_local


class DistributedMixin:
    """Comes before the user's class in the class of the result; super() is that class."""

    _plain: type
    _reduction: GradientReduction
    _accumulated: tuple[list[Any], int | None] | None = None
    """Within apply() with accumulation: the variables that _clip_gradients() will be given the gradients of, and
    mark_of() them."""
    _is_reduced = False
    """Within apply() of a LossScaleOptimizer that has had the gradients reduced."""

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable's gradient out of the reduction: each rank has its own value of the variable.

        The gradient is divided by the number of ranks, unless scale_local_gradients=False was given. Raises
        InvalidArgumentError for what is no variable.
        """
        self._reduction.register_local(var)

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> Any:
        """The optimizer's apply(), with reduced gradients. Collective over the process set.

        A None among the gradients stays one; it must be None on all ranks.
        """
        me: Any = self
        gradients = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)  # which is passed on, and may be an iterator
        variables = list(me._trainable_variables if trainable_variables is None else trainable_variables)
        settings = self._reduction.settings
        if len(variables) != len(gradients) or not (self._reduction.is_needed() or is_sum(settings)):
            return self._plain_apply(gradients, trainable_variables)
        if self._reduction.is_needed():
            self._check_local(variables)
            self._check_own(gradients, variables)
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        if not self._reduction.first_step.is_compared and not backend.active().is_traced(
            [gradients[i] for i in present]
        ):
            self._reduction.first_step.before_apply(self, variables)
        if self._is_reduced:
            return self._plain_apply(gradients, trainable_variables)
        if not self._accumulates():
            return self._plain_apply(self._reduced(gradients, variables), trainable_variables)
        _, usual_variables, mark = self._overwriting_reduced(gradients, variables)
        return self._apply_accumulating(gradients, trainable_variables, usual_variables, mark)

    def _reduced(self, grads: Iterable[Any], variables: list[Any]) -> list[Any]:
        """What apply() makes of gradients before it applies them, without accumulation. Collective.

        For a loss scale, which looks at gradients before apply() is called: see _applying_reduced().
        """
        me: Any = self
        gradients = list(grads)
        usual, usual_variables, mark = self._overwriting_reduced(gradients, variables)
        results = self._reduction.reduce([gradients[i] for i in usual], usual_variables, me._var_key, mark)
        for i, gradient in zip(usual, results, strict=True):
            gradients[i] = gradient
        return gradients

    @contextmanager
    def _applying_reduced(self) -> Iterator[None]:
        """Within it apply() takes gradients that _reduced() has given."""
        vars(self)["_is_reduced"] = True
        try:
            yield
        finally:
            del vars(self)["_is_reduced"]

    def _overwriting_reduced(
        self, gradients: list[Any], variables: list[Any]
    ) -> tuple[list[int], list[Any], int | None]:
        """Reduces, in the list, those that overwrite their variable. The places of the others, their variables, and
        mark_of() all."""
        me: Any = self
        present = [i for i, gradient in enumerate(gradients) if gradient is not None]
        special = [i for i in present if me._overwrite_variable_with_gradient(variables[i])]
        usual = [i for i in present if i not in special]
        if self._reduction.is_needed():
            # These are no gradients but float8's new scales, for which the largest one is right on all ranks.
            for i, value in zip(special, self._reduction.largest([gradients[i] for i in special]), strict=True):
                gradients[i] = value
        return usual, [variables[i] for i in usual], self._reduction.mark(variables, present, me._var_key)

    def _check_local(self, variables: list[Any]) -> None:
        """Raises InvalidArgumentError where local variables are clipped together with shared ones."""
        me: Any = self
        local = {me._var_key(variable) for variable in self._reduction.local()}
        keys = local.intersection(map(me._var_key, variables))
        if not keys:
            return
        if not hasattr(me, "_inner_optimizers"):
            check_local(me)
            return
        if not me.built:  # a MultiOptimizer, which apply() would build
            me.build(variables)
        for place in {me._var_to_optimizer_idx[key] for key in keys}:
            check_local(me._inner_optimizers[place])

    def _check_own(self, gradients: list[Any], variables: list[Any]) -> None:
        """Warns of gradients that a tape has reduced. The mean over the ranks of what is the same on all is that.

        Raises:
            InvalidArgumentError: their sum would be taken, or local ones would be divided once more.
        """
        settings = self._reduction.settings
        twice = [at for at, one in enumerate(gradients) if reduced.is_reduced(one, settings.process_set.ranks)]
        if not twice:
            return
        me: Any = self
        text = (
            "DistributedOptimizer: these gradients were reduced by a DistributedGradientTape already; give them to the "
            "plain optimizer"
        )
        local = {me._var_key(variable) for variable in self._reduction.local()}
        scaled = settings.scale_local_gradients and any(me._var_key(variables[at]) in local for at in twice)
        if settings.op != Average or scaled:
            raise InvalidArgumentError(text)
        if settings.process_set.group.rank == 0:
            warnings.warn(f"{text}, or they travel twice", RuntimeWarning, stacklevel=config.users_level())

    def _plain_apply(self, gradients: list[Any], variables: Iterable[Any] | None) -> Any:
        parent: Any = super()
        return parent.apply(gradients, variables)

    def _accumulates(self) -> bool:
        """Whether Keras's own apply() accumulates. One of the user's own may do anything; there every call reduces."""
        me: Any = self
        return bool(me.gradient_accumulation_steps) and self._plain.apply is keras.optimizers.Optimizer.apply  # type: ignore[attr-defined]

    def _apply_accumulating(
        self, gradients: list[Any], given: Iterable[Any] | None, usual: list[Any], mark: int | None
    ) -> Any:
        vars(self)["_accumulated"] = usual, mark
        try:
            return self._plain_apply(gradients, given)
        finally:
            del vars(self)["_accumulated"]

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """With accumulation: reduces the mean of the last passes first, on update steps."""
        parent: Any = super()
        me: Any = self
        if self._accumulated is None:
            return parent._clip_gradients(grads)
        variables, mark = self._accumulated
        steps = me.gradient_accumulation_steps
        grads = list(grads)
        if len(grads) != len(variables):
            raise Error(
                f"Keras {keras.__version__} clips {len(grads)} gradients of the {len(variables)} that it accumulates: "
                "gradient accumulation of this version is not known to ringreduce.keras; please report it, and use "
                "one pass a step meanwhile"
            )

        def of_all() -> list[Any]:
            needed = self._reduction.is_needed()
            result = self._reduction.reduce(grads, variables, me._var_key, mark) if needed else grads
            return [gradient * steps for gradient in result] if is_sum(self._reduction.settings) else result

        if keras.backend.backend() == "jax":  # which calls this on every step, and drops what comes of most
            result = ops.cond((me._iterations + 1) % steps == 0, of_all, lambda: grads)
        else:
            result = of_all()
        return parent._clip_gradients(result)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "loss_scale_factor" and value is None:
            from ringreduce.keras.loss_scale import watch

            watch()  # this is what a LossScaleOptimizer does to the optimizer that it is made around
        super().__setattr__(name, value)
