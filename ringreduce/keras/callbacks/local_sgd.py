"""Local SGD in fit(): ranks step alone, and average their parameters every so many batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ringreduce.basics import rank
from ringreduce.collectives import ops
from ringreduce.common import same_start
from ringreduce.common.which_keras import uses_keras_2
from ringreduce.errors import InvalidArgumentError, MismatchError, UnavailableError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.keras.active import keras, training
from ringreduce.keras.callbacks.fit_thread import FitThread

NAME = "keras.local_sgd"  # of the operations; a fit() has one callback
CURE = "Give hvd.callbacks.BroadcastGlobalVariablesCallback(0) to model.fit(), before LocalSGDCallback"


class LocalSGDCallback(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Averages the trainable variables over the ranks every `every` batches, and at the end of fit(). Collective.

    The model has a plain optimizer, which steps with this rank's gradients; its state, such as momenta, stays the
    rank's own, and so do variables that are not trained. With x the parameters of a rank and m what all ranks had after
    the last averaging, d = mean over the ranks of (m - x); then m becomes m - d, or what the outer optimizer makes of m
    with the gradient d; then x becomes m. An optimizer with use_ema=True ends fit() with moving averages in x, and
    these are averaged then, without the outer optimizer. Keras 3 only.

    A callback, as it works between the compiled steps of all backends alike: variables are no part of JAX's steps, and
    TensorFlow's under XLA cannot communicate. With steps_per_execution it averages after the execution in which a
    period ends. In the list that fit() is given it comes after BroadcastGlobalVariablesCallback, and before callbacks
    that look at variables. Every rank has equally many batches. A period begins with fit(); the state of the outer
    optimizer goes on in the next fit() with this callback, and is in no file of the model.

    Args:
        every: batches between two averagings, H; 1 or more.
        outer: a function without arguments that makes a Keras optimizer, such as
            lambda: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True), which is DiLoCo's; None: m becomes the mean
            of x.
        process_set: the ranks that take part.

    Raises:
        InvalidArgumentError: an argument is wrong; it says which. In fit(): the model's optimizer is a
            DistributedOptimizer; or the callback was given by itself, and not in a list.
        MismatchError: in fit(), ranks average after different numbers of batches.
        UnavailableError: with Keras 2.

    >>> model.fit(x, y, callbacks=[hvd.callbacks.LocalSGDCallback(every=50)])
    """

    def __init__(
        self,
        every: int,
        outer: Callable[[], Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        if uses_keras_2():
            raise UnavailableError("LocalSGDCallback is for Keras 3; this process uses Keras 2, TF_USE_LEGACY_KERAS=1")
        if not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"LocalSGDCallback: every is a whole number, 1 or more, not {every!r}")
        self.every = every
        self.process_set = process_set
        self._outer = _made(outer)
        self._thread = FitThread()
        self._trained: list[Any] = []
        self._common: list[Any] = []  # m; without an outer optimizer nothing
        self._has_started = False  # in this fit()
        self._steps = 0  # of this fit(), before this epoch
        self._batches = 0  # of this epoch
        self._averaged = 0  # steps of this fit() up to the last averaging

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._thread.begin()
        self._has_started = False
        self._steps = self._batches = self._averaged = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += self._batches
        self._batches = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        # Here, and not in on_train_begin(): by now every callback has broadcast what it wants to.
        if not self._has_started and self._is_built():
            self._start()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._thread.check(self)
        if not self._has_started:  # the first batch has built the model, and BroadcastGlobalVariablesCallback sent it
            self._start()
        self._batches = batch + 1  # with steps_per_execution a call stands for several
        steps = self._steps + self._batches
        if steps // self.every > self._averaged // self.every:
            self._check(steps)
            self._average(steps, self._outer)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        steps = self._steps + self._batches
        self._check(steps)
        if self._has_started and _ends_with_moving_averages(self.model.optimizer):
            # By now Keras has put this rank's own into the variables; m and the outer optimizer are not of these.
            self._average(steps, None)
        elif steps > self._averaged:
            self._average(steps, self._outer)

    def _is_built(self) -> bool:
        """Whether the model is built on all ranks, and not only on one that has loaded it. Collective."""
        built = np.array([training.is_built(self.model)], np.int32)
        return bool(ops.allreduce(built, op=ops.Min, name=f"{NAME}.is_built", process_set=self.process_set)[0])

    def _start(self) -> None:
        """Takes this rank's parameters as what all ranks have."""
        model: Any = self.model  # on JAX this fetches the variables
        if hasattr(getattr(model.optimizer, "inner_optimizer", model.optimizer), "_reduction"):
            raise InvalidArgumentError(
                "LocalSGDCallback: the model's optimizer is a DistributedOptimizer, with which ranks step alike; "
                "compile the model with the plain optimizer"
            )
        trained = list(model.trainable_variables)
        self._compare(trained)  # which may send the first rank's
        if self._outer is not None:
            self._start_outer(trained)
        self._trained, self._has_started = trained, True

    def _start_outer(self, trained: Sequence[Any]) -> None:
        same = len(trained) == len(self._trained) and all(map(_is, trained, self._trained))
        if not same:
            if self._trained:
                raise InvalidArgumentError(
                    "LocalSGDCallback: the model trains other variables than in the last fit(), and the outer "
                    "optimizer has state of those: make a new LocalSGDCallback, on all ranks"
                )
            self._common = [keras.Variable(x, dtype=v.dtype) for x, v in zip(_values(trained), trained, strict=True)]
            self._outer.build(self._common)
        for m, x in zip(self._common, _values(trained), strict=True):
            m.assign(x)
        # The same m on all ranks, also where they begin with different parameters and are only warned.
        training.broadcast_variables(self._common, self.process_set.ranks[0], self.process_set)

    def _compare(self, trained: Sequence[Any]) -> None:
        """Warns, or as RINGREDUCE_CHECK_PARAMETERS says, where ranks begin with different parameters. Collective."""
        if self.process_set.size() == 1:
            return
        arrays = _values(trained)
        layout = [(array.shape, str(array.dtype)) for array in arrays]

        def broadcast(places: list[int]) -> None:
            training.broadcast_variables([trained[at] for at in places], self.process_set.ranks[0], self.process_set)

        same_start.check(
            lambda: ([training.name_of(v) for v in trained], layout),
            lambda: same_start.sums_of(arrays),
            broadcast,
            CURE,
            NAME,
            self.process_set,
            type(self).__name__,
        )

    def _check(self, steps: int) -> None:
        """Raises MismatchError, on all ranks, where they are not in the same step. Collective."""
        if not same_start.are_on_all_ranks(self.process_set, f"{NAME}.steps", [steps, self.every]):
            raise MismatchError(
                f"LocalSGDCallback: rank {rank()} averages after {steps} batches, with every={self.every}, and another "
                "rank has other numbers: all ranks need the same `every`, and equally many batches "
                "(fit(steps_per_epoch=...))"
            )

    def _average(self, steps: int, outer: Any) -> None:
        training.synchronize(self.model)
        sent = own = _values(self._trained)
        if outer is not None:
            sent = [m - x for m, x in zip(_values(self._common), own, strict=True)]
        new = ops.grouped_allreduce(sent, name=NAME, process_set=self.process_set)
        if outer is not None:
            tensors = [keras.ops.convert_to_tensor(d, dtype=m.dtype) for d, m in zip(new, self._common, strict=True)]
            outer.apply(tensors, self._common)
            new = _values(self._common)
        for variable, value in zip(self._trained, new, strict=True):
            variable.assign(value)
        self._averaged = steps


def _made(outer: Any) -> Any:
    """The outer optimizer. Raises InvalidArgumentError where it is none."""
    if outer is None:
        return None
    made = outer() if callable(outer) else outer
    if not callable(outer) or not isinstance(made, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            "LocalSGDCallback: outer is a function that makes a Keras optimizer, such as "
            "lambda: keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True); this one is or gives a "
            f"{type(made).__name__}"
        )
    return made


def _ends_with_moving_averages(optimizer: Any) -> bool:
    """Whether Keras ends fit() by putting the optimizer's moving averages (use_ema) into the variables."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    return any(one.use_ema for one in getattr(optimizer, "optimizers", [optimizer]))  # or those of a MultiOptimizer


def _values(variables: Sequence[Any]) -> list[np.ndarray]:
    """Copies: Keras does not say whether arrays and variables may share memory, and steps change variables."""
    return [np.array(training.array_of(variable)) for variable in variables]


def _is(one: Any, other: Any) -> bool:
    return one is other
