"""LocalSGDCallback in fit(), beside a twin in NumPy that knows all ranks. Run within a job of two ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import SGD
from keras_checks import means_of_49_ranks
from page_programs import program

LR, MOMENTUM = 0.0625, 0.5  # exact in float32, which the learning rate's variable has
BATCHES, EPOCHS = 6, 2
START = np.sin(np.arange(5.0))
METHODS: dict[str, tuple[int, tuple[float, float] | None]] = {
    "averaging": (4, None),
    "averaging in each batch": (1, None),
    "DiLoCo": (5, (0.75, 0.875)),
}


class Point(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """Five weights, which are its output; without matrix products, which some backends make in float32."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=START.shape, initializer="zeros", dtype="float64", name="w")
        self.w.assign(START)

    def call(self, inputs: Any) -> Any:
        return 0 * inputs + self.w


def pull(target: Any, point: Any) -> Any:
    """A loss whose gradient is point - target + 0.1 point^3."""
    return keras.ops.sum(0.5 * (point - target) ** 2 + 0.025 * point**4, axis=-1)


def targets(rank: int) -> np.ndarray:
    """One for each batch of the epochs."""
    return np.cos(np.arange(1.0, BATCHES + 1)[:, None] + rank * np.arange(5.0))


class Twin:
    """All ranks' weights, with SGD of momentum on each, in float64."""

    def __init__(self, size: int, every: int, outer: tuple[float, float] | None) -> None:
        self.every, self.outer = every, outer
        self.x = [START.copy() for _ in range(size)]
        self.v = [np.zeros(5) for _ in range(size)]
        self.m, self.u = START.copy(), np.zeros(5)

    def step(self, number: int) -> None:
        for rank, x in enumerate(self.x):
            gradient = x - targets(rank)[(number - 1) % BATCHES] + 0.1 * x**3
            self.v[rank] = MOMENTUM * self.v[rank] - LR * gradient
            self.x[rank] = x + self.v[rank]
        if number % self.every == 0:
            self.average()

    def average(self) -> None:
        mean = np.mean(self.x, axis=0)
        if self.outer is not None:
            lr, momentum = self.outer
            d = self.m - mean
            self.u = momentum * self.u - lr * d
            mean = self.m + momentum * self.u - lr * d
        self.m = mean
        self.x = [mean.copy() for _ in self.x]


class Recorder(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """The weights after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rows.append(weights(self.model))


def weights(model: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(model.trainable_variables[0]))


def made(optimizer: Any = None, built: bool = True, **options: Any) -> Any:
    layers = [Point()]
    model = keras.Sequential([keras.layers.Input((5,)), *layers] if built else layers)
    model.compile(SGD(LR, momentum=MOMENTUM) if optimizer is None else optimizer, loss=pull, **options)
    return model


def fit(hvd: Any, model: Any, callbacks: Any, epochs: int = EPOCHS, batches: int = BATCHES) -> None:
    x, y = np.zeros((batches, 5)), targets(hvd.rank())[:batches]
    model.fit(x, y, batch_size=1, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)


def outer_of(numbers: tuple[float, float] | None) -> Callable[[], Any] | None:
    return None if numbers is None else lambda: SGD(numbers[0], momentum=numbers[1], nesterov=True)


def every_step_is_its_equations(hvd: Any) -> None:
    for every, numbers in METHODS.values():
        twin = Twin(hvd.size(), every, numbers)
        recorder = Recorder()
        callback = hvd.callbacks.LocalSGDCallback(every, outer_of(numbers))
        model = made()
        fit(hvd, model, [callback, recorder])
        for number, row in enumerate(recorder.rows, 1):
            twin.step(number)
            np.testing.assert_allclose(row, twin.x[hvd.rank()], rtol=0, atol=1e-12)
            both = hvd.allgather_object(row.tolist())
            assert (both[0] == both[1]) == (number % every == 0)
        assert len(recorder.rows) == BATCHES * EPOCHS
        if len(recorder.rows) % every:
            twin.average()  # at the end of fit()
        np.testing.assert_allclose(weights(model), twin.x[0], rtol=0, atol=1e-12)
        assert len(set(map(str, hvd.allgather_object(weights(model).tolist())))) == 1

        # Nobody else looks at the variables, which JAX's trainer keeps aside.
        alone = made()
        fit(hvd, alone, [hvd.callbacks.LocalSGDCallback(every, outer_of(numbers))])
        assert weights(alone).tolist() == weights(model).tolist()


def averaging_in_each_batch_has_the_bits_of_an_allreduce(hvd: Any) -> None:
    ours, theirs = made(), made()
    recorder = Recorder()
    fit(hvd, ours, [hvd.callbacks.LocalSGDCallback(1), recorder])
    for number, row in enumerate(recorder.rows):
        target = targets(hvd.rank())[number % BATCHES]
        theirs.train_on_batch(np.zeros((1, 5)), target[None])
        variable = theirs.trainable_variables[0]
        variable.assign(hvd.allreduce(variable))
        assert weights(theirs).tolist() == row.tolist()


def the_outer_optimizer_goes_on_in_the_next_fit(hvd: Any) -> None:
    every, numbers = METHODS["DiLoCo"]
    callback = hvd.callbacks.LocalSGDCallback(every, outer_of(numbers))
    model = made()
    twin = Twin(hvd.size(), every, numbers)
    for _ in range(3):
        fit(hvd, model, [callback], epochs=1)
        for number in range(1, BATCHES + 1):
            twin.step(number)
        twin.average()
        np.testing.assert_allclose(weights(model), twin.x[0], rtol=0, atol=1e-12)
    with pytest.raises(hvd.InvalidArgumentError, match="trains other variables than in the last fit"):
        fit(hvd, made(), [callback], epochs=1)


def several_steps_may_be_one_execution(hvd: Any) -> None:
    """Batches 2, 4 and 6 end executions: every=3 averages after 4, in whose execution the period ends, and after 6."""
    if keras.backend.backend() == "torch":  # has no steps_per_execution
        return
    recorder = Recorder()
    model = made(steps_per_execution=2)
    fit(hvd, model, [hvd.callbacks.LocalSGDCallback(3), recorder], epochs=1)
    both = hvd.allgather_object([row.tolist() for row in recorder.rows])
    assert [one == other for one, other in zip(*both, strict=True)] == [False, True, True]


def ranks_begin_alike(hvd: Any) -> None:
    """Also where the first batch builds the model. Where nobody broadcasts, rank 0 says so."""
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
    for built in (True, False):
        for outer in (None, outer_of((0.75, 0.875))):
            model = made(built=built)
            if built:
                model.trainable_variables[0].assign(START * (hvd.rank() + 1))
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                fit(hvd, model, [broadcast, hvd.callbacks.LocalSGDCallback(4, outer)])
            assert len(set(map(str, hvd.allgather_object(weights(model).tolist())))) == 1
    for outer in (None, outer_of((0.75, 0.875))):
        model = made()
        model.trainable_variables[0].assign(START * (hvd.rank() + 1))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit(hvd, model, [hvd.callbacks.LocalSGDCallback(4, outer)])
        told = [str(one.message) for one in caught if "is not the same on all ranks" in str(one.message)]
        assert len(told) == (hvd.rank() == 0)
        assert all("BroadcastGlobalVariablesCallback(0)" in text for text in told)
        assert all(text.startswith("LocalSGDCallback, first step: ") for text in told)
        assert len(set(map(str, hvd.allgather_object(weights(model).tolist())))) == 1


def the_model_may_be_built_on_one_rank(hvd: Any) -> None:
    """Because it has loaded it."""
    for outer in (None, outer_of((0.75, 0.875))):
        model = made(built=hvd.rank() == 0)
        broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        fit(hvd, model, [broadcast, hvd.callbacks.LocalSGDCallback(4, outer)])
        assert len(set(map(str, hvd.allgather_object(weights(model).tolist())))) == 1


def the_end_is_the_mean_of_moving_averages(hvd: Any) -> None:
    """Keras puts each rank's own into the variables after the last batch, here after the last averaging too."""
    for outer in (None, outer_of((0.75, 0.875))):
        for is_inside in (False, True):
            optimizer = SGD(LR, use_ema=True, ema_momentum=0.5)
            if is_inside:
                optimizer = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(optimizer))
            model = made(optimizer)
            recorder = Recorder()
            fit(hvd, model, [recorder, hvd.callbacks.LocalSGDCallback(BATCHES, outer)], epochs=1)
            mine = recorder.rows[0]
            for row in recorder.rows[1:]:
                mine = (mine + row) / 2
            expected = np.mean(hvd.allgather_object(mine), axis=0)
            np.testing.assert_allclose(weights(model), expected, rtol=0, atol=1e-6)
            assert len(set(map(str, hvd.allgather_object(weights(model).tolist())))) == 1


def ranks_that_differ_are_told(hvd: Any) -> None:
    fewer = BATCHES - hvd.rank()
    # By period and batches: those that are over before the error. In the last, rank 1 has averaged after all its
    # batches, and rank 0 has one more.
    for every, batches, over in ((4 + hvd.rank(), BATCHES, 3 + hvd.rank()), (4, fewer, fewer), (5, fewer, fewer)):
        model = made()
        seen = Recorder()
        with pytest.raises(hvd.MismatchError, match="all ranks need the same `every`, and equally many batches"):
            fit(hvd, model, [hvd.callbacks.LocalSGDCallback(every), seen], epochs=1, batches=batches)
        assert len(seen.rows) == over
        if over == batches:
            assert weights(model).tolist() == seen.rows[-1].tolist()


def equal_numbers_are_equal_at_49_ranks(hvd: Any) -> None:
    with means_of_49_ranks():
        fit(hvd, made(), [hvd.callbacks.LocalSGDCallback(1)], epochs=1)


def wrong_arguments_are_refused(hvd: Any) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "every is a whole number, 1 or more, not 0": {"every": 0},
        "every is a whole number, 1 or more, not 2.5": {"every": 2.5},
        "is or gives a float": {"every": 2, "outer": 0.7},
        "is or gives a SGD": {"every": 2, "outer": SGD(0.7)},
        "is or gives a dict": {"every": 2, "outer": dict},
    }
    for text, arguments in wrong.items():
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            hvd.callbacks.LocalSGDCallback(**arguments)
    model = made(hvd.DistributedOptimizer(SGD(0.1)))
    with pytest.raises(hvd.InvalidArgumentError, match="optimizer is a DistributedOptimizer"):
        fit(hvd, model, [hvd.callbacks.LocalSGDCallback(2)])


def a_callback_that_is_in_no_list_is_refused(hvd: Any) -> None:
    """Keras calls it on other threads, beside the next step, where its backend allows that."""
    if keras.backend.backend() == "tensorflow":
        fit(hvd, made(), hvd.callbacks.LocalSGDCallback(1), epochs=1)
        return
    with pytest.raises(hvd.InvalidArgumentError, match=r"LocalSGDCallback.*callbacks=\[\.\.\.\]"):
        fit(hvd, made(), hvd.callbacks.LocalSGDCallback(1))
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    fit(hvd, made(), callback, epochs=1)  # has broadcast before the first step
    callback._done = False
    with ThreadPoolExecutor(1) as pool, pytest.raises(hvd.InvalidArgumentError, match=r"Broadcast.*callbacks="):
        pool.submit(callback.on_train_batch_end, 0).result()
    with ThreadPoolExecutor(1) as pool:  # a fit() on another thread than the last
        pool.submit(fit, hvd, made(), [hvd.callbacks.LocalSGDCallback(1), callback], 1).result()


def the_program_of_the_page_runs(hvd: Any) -> None:
    names: dict[str, Any] = {}
    exec(compile(program("keras.md", "Local SGD", "LocalSGDCallback"), "<the page's program>", "exec"), names)
    kernel = np.array(keras.ops.convert_to_numpy(names["model"].trainable_variables[0])).reshape(-1)
    np.testing.assert_allclose(kernel, [1.0, 2.0, 3.0], atol=0.1)
    both = hvd.allgather_object(kernel.tolist())
    assert both[0] == both[1]


CHECKS = [
    every_step_is_its_equations,
    averaging_in_each_batch_has_the_bits_of_an_allreduce,
    the_outer_optimizer_goes_on_in_the_next_fit,
    several_steps_may_be_one_execution,
    ranks_begin_alike,
    the_model_may_be_built_on_one_rank,
    the_end_is_the_mean_of_moving_averages,
    ranks_that_differ_are_told,
    equal_numbers_are_equal_at_49_ranks,
    wrong_arguments_are_refused,
    a_callback_that_is_in_no_list_is_refused,
    the_program_of_the_page_runs,
]
