"""Keras's fit() and the callbacks, functions and files around it. Run within a job of two ranks."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_checks import apply_steps, assert_close, gradients, means_of_49_ranks, new_variables

BATCHES, SHARE = 3, 4  # batches in an epoch; samples of a batch that each of two ranks has
CLOSE = 1e-5  # of values of about 1: Keras multiplies matrices of float64 in float32 on some backends


@keras.saving.register_keras_serializable("keras_training_checks")
class Registered(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
    """SGD under another name, which Keras knows."""


class Unregistered(keras.optimizers.SGD):  # type: ignore[misc, unused-ignore]
    """SGD under another name, which Keras has to be told."""


def make_model(seed: int, built: bool = True) -> Any:
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)]
    return keras.Sequential([keras.layers.Input((6,)), *layers] if built else layers)


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    count = BATCHES * 2 * SHARE
    return rng.standard_normal((count, 6)), rng.standard_normal((count, 2))


def shared(array: np.ndarray, rank: int) -> np.ndarray:
    """A rank's samples of each batch, in order."""
    return array.reshape(BATCHES, 2, SHARE, -1)[:, rank].reshape(BATCHES * SHARE, -1)


def weights(model: Any) -> list[np.ndarray]:
    return [np.array(keras.ops.convert_to_numpy(v)) for v in model.weights]


def fit(hvd: Any, model: Any, epochs: int = 2, **options: Any) -> Any:
    """Trains this rank's share; without a job's part in it, everything."""
    x, y = data()
    if options.pop("alone", False):
        return model.fit(x, y, batch_size=2 * SHARE, epochs=epochs, shuffle=False, verbose=0, **options)
    share = shared(x, hvd.rank()), shared(y, hvd.rank())
    return model.fit(*share, batch_size=SHARE, epochs=epochs, shuffle=False, verbose=0, **options)


def two_ranks_train_as_one_on_the_joined_batch(hvd: Any) -> None:
    for options in ({}, {"gradient_accumulation_steps": 3}):

        def sgd(options: Any = options) -> Any:
            return keras.optimizers.SGD(0.2, momentum=0.9, global_clipnorm=0.4, **options)

        alone = make_model(seed=1)
        alone.compile(sgd(), loss="mse", metrics=["mae"])
        expected = fit(hvd, alone, alone=True)
        model = make_model(seed=hvd.rank())
        model.compile(hvd.DistributedOptimizer(sgd()), loss="mse", metrics=["mae"])
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(1), hvd.callbacks.MetricAverageCallback()]
        history = fit(hvd, model, callbacks=callbacks)
        assert_close(weights(model), weights(alone), CLOSE)
        for name in ("loss", "mae"):
            assert history.history[name] == pytest.approx(expected.history[name], rel=1e-6)  # Keras's are float32
        assert model.optimizer.built
        assert_close(
            *([keras.ops.convert_to_numpy(v) for v in m.optimizer.variables[2:]] for m in (model, alone)), CLOSE
        )


def broadcasts_begin_with_the_roots_variables(hvd: Any) -> None:
    # A model that is not built before its first batch, and one of whose variables stays each rank's own.
    model = make_model(seed=hvd.rank(), built=False)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    fit(hvd, model, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert len({str(hvd.broadcast_object(weights(model), root)) for root in (0, 1)}) == 1

    # The root's is, because it has loaded it.
    model = make_model(seed=hvd.rank(), built=hvd.rank() == 0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
    fit(hvd, model, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert len({str(hvd.broadcast_object(weights(model), root)) for root in (0, 1)}) == 1

    model = make_model(seed=hvd.rank())
    before = weights(model)
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=[model.weights[0]])
    callback.register_local_var(model.weights[1])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    fit(hvd, model, 1, callbacks=[callback])
    assert_close(weights(model), [*before[:2], *weights(make_model(seed=1))[2:]])

    # One variable in place of a list. A second fit() broadcasts again.
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=model.weights[0])
    fit(hvd, model, 1, callbacks=[callback])
    assert_close(weights(model), [before[0], *weights(make_model(seed=1))[1:]])
    model.weights[1].assign(before[1])
    model.weights[2].assign(before[2])
    fit(hvd, model, 1, callbacks=[callback])
    assert_close(weights(model), [before[0], *weights(make_model(seed=1))[1:]])

    # What the root alone loads when training begins, by a callback that comes later in the list.
    loaded = weights(make_model(seed=7))
    model = make_model(seed=hvd.rank())
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), loss="mse")
    restore = keras.callbacks.LambdaCallback(on_train_begin=lambda _: model.set_weights(loaded))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), restore]
    fit(hvd, model, 1, callbacks=callbacks[: 2 - hvd.rank()])
    assert_close(weights(model), loaded)

    # A model whose train_step() has optimizers of its own.
    for built in (True, False):
        model = make_model(seed=hvd.rank(), built=built)
        model.compile(optimizer=None)
        callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1)
        callback.set_model(model)
        callback.on_train_begin()
        model(np.zeros((1, 6)))
        callback.on_train_batch_end(0)
        assert len({str(hvd.broadcast_object(weights(model), root)) for root in (0, 1)}) == 1
    for wrong in ("kernel", ["kernel"], [model.layers[0]]):
        with pytest.raises(hvd.InvalidArgumentError, match="All local variables must be of"):
            hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=wrong)

    variables = [
        keras.Variable(np.full(3, hvd.rank() + 5.0)),
        keras.Variable(np.arange(2) + hvd.rank(), dtype="int32", trainable=False),
    ]
    hvd.broadcast_variables(variables, root_rank=1)
    assert keras.ops.convert_to_numpy(variables[0]).tolist() == [6.0, 6.0, 6.0]
    assert keras.ops.convert_to_numpy(variables[1]).tolist() == [1, 2]
    number = (3, 1)[hvd.rank()]  # as where one rank's optimizer is not built
    variables = [keras.Variable(np.full(3, float(hvd.rank()))) for _ in range(number)]
    with pytest.raises(hvd.MismatchError, match="broadcast_variables: the ranks give other numbers of tensors"):
        hvd.broadcast_variables(variables, root_rank=0)
    with pytest.raises(hvd.MismatchError):
        hvd.broadcast_variables(variables if hvd.rank() == 0 else [], root_rank=0)
    assert keras.ops.convert_to_numpy(variables[0]).tolist() == [hvd.rank()] * 3
    with pytest.raises(hvd.UnavailableError, match="BroadcastGlobalVariablesCallback"):
        hvd.broadcast_global_variables(0)


def broadcasts_leave_each_rank_its_sums(hvd: Any) -> None:
    """Gradients of passes that no step has used yet are a rank's own: the root's in their place would count twice."""
    for outside in (False, True):
        model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        plain = keras.optimizers.SGD(1.0, gradient_accumulation_steps=2)
        optimizer = hvd.DistributedOptimizer(plain)
        if outside:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0)
        model.compile(optimizer, loss=slope)
        model.layers[0].kernel.assign(np.zeros((1, 1)))
        x = np.full((1, 1), 1.0 + 2 * hvd.rank())  # which is the gradient
        for _ in range(2):
            callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
            model.fit(x, x, batch_size=1, verbose=0, callbacks=callbacks)
        assert weights(model)[0].tolist() == [[-2.0]]

    # An optimizer of train_step()'s own stands in no model.optimizer.
    from ringreduce.keras import training

    model = make_model(seed=hvd.rank())
    model.optimizer = None
    training.broadcast(model, 0, [])
    assert len({str(hvd.broadcast_object(weights(model), root)) for root in (0, 1)}) == 1


def metrics_are_averaged(hvd: Any) -> None:
    rank = hvd.rank()
    arrays = {
        "f1": np.array([[1.0, 2.0], [4.0, 8.0]], np.float32) * (1 + 2 * rank),
        "kept": keras.ops.convert_to_tensor([rank, 3.0], dtype="bfloat16"),
        "list": [rank, 10 * rank, 7],
    }
    means = {"f1": [[2.0, 4.0], [8.0, 16.0]], "kept": [0.5, 3.0], "list": [0.5, 5.0, 7.0]}
    logs = {"loss": 1.0 + rank, **arrays, "accuracy": np.float32(rank), "name": f"of {rank}", "ragged": [[rank], []]}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert {name: logs.pop(name).tolist() for name in arrays} == means
    assert logs == {"loss": 1.5, "accuracy": 0.5, "name": f"of {rank}", "ragged": [[rank], []]}
    assert type(logs["accuracy"]) is float
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"name": f"of {rank}"})
    for shape in ((2, 3), (6,)) if rank else ((3, 2), (5,)):  # as many elements, and not
        with pytest.raises(hvd.MismatchError, match=r"MetricAverageCallback.*metrics"):
            hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {"f1": np.zeros(shape)})
    for names in (["a"], ["loss"], ["loss", "mae", f"of {hvd.rank()}"]):
        with pytest.raises(hvd.MismatchError):
            hvd.callbacks.MetricAverageCallback().on_epoch_end(0, dict.fromkeys([*names, f"last{hvd.rank()}"], 1.0))
    more = {f"loss{number}": 1.0 for number in range(1 + hvd.rank())}
    with pytest.raises(hvd.MismatchError):
        hvd.callbacks.MetricAverageCallback().on_epoch_end(0, more)
    for name in ("loss", "accuracy", "mae", "mse"):  # their marks are rounded apart, or not
        with means_of_49_ranks():
            hvd.callbacks.MetricAverageCallback().on_epoch_end(0, {name: 1.0})


def metrics_of_classes_are_averaged(hvd: Any) -> None:
    """By fit(), whose history has them."""
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3, activation="softmax")])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, loss="categorical_crossentropy", metrics=[keras.metrics.F1Score(name="f1")])
    rng = np.random.default_rng(hvd.rank())
    x, y = rng.standard_normal((16, 6)), np.eye(3)[rng.integers(0, 3, 16)]
    own = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: mine.append(np.array(logs["f1"])))
    mine: list[np.ndarray] = []
    start, average = hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()
    history = model.fit(x, y, batch_size=8, verbose=0, callbacks=[start, own, average])
    np.testing.assert_allclose(history.history["f1"][0], np.mean(hvd.allgather_object(mine[0]), axis=0))


def a_rank_with_more_batches_is_told(hvd: Any) -> None:
    """Rank 0 reduces gradients while rank 1 has come to its epoch's end."""
    if keras.backend.backend() == "tensorflow":  # names its gradients: test_one_batch_more_on_one_rank
        return
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    variables = new_variables()
    apply_steps(optimizer, [gradients(step, hvd.rank()) for step in range(2)], variables)
    metrics = hvd.callbacks.MetricAverageCallback()

    def go_on() -> None:
        if hvd.rank() == 0:
            apply_steps(optimizer, [gradients(2, 0)], variables)
        else:
            metrics.on_epoch_end(0, {"loss": 1.0})

    with pytest.raises(Exception, match=r"(?s)Mismatch.*all ranks need equally many batches in an epoch"):
        go_on()


class Slope(keras.layers.Layer):  # type: ignore[misc, unused-ignore]
    """One weight, whose gradient is 1 under the loss of slope()."""

    def build(self, shape: Any) -> None:
        self.w = self.add_weight(shape=(), initializer="zeros", name="w")

    def call(self, inputs: Any) -> Any:
        return keras.ops.ones_like(inputs) * self.w


def slope(_: Any, y: Any) -> Any:
    return keras.ops.mean(y)


def learning_rates_follow_their_schedules(hvd: Any) -> None:
    size, steps = hvd.size(), 3

    def train(callback: Any, epochs: int, **options: Any) -> tuple[float, list[float]]:
        model = keras.Sequential([keras.layers.Input((1,)), Slope()])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, **options)), loss=slope)
        x = np.zeros((steps, 1))
        history = model.fit(x, x, batch_size=1, epochs=epochs, verbose=0, callbacks=[callback])
        return float(weights(model)[0]), history.history["lr"]

    def expected(rates: list[float], momentum: float, corrected: bool) -> float:
        w = v = 0.0
        old = 0.5
        for rate in rates:
            v = momentum * v * (rate / old if corrected else 1.0) - rate
            w, old = w + v, rate
        return w

    warm = [0.8 / size * ((b + 1) / steps * (size - 1) / 2 + 1) for b in range(2 * steps)] + [0.8] * steps
    for corrected in (True, False):
        output = io.StringIO()
        callback = hvd.callbacks.LearningRateWarmupCallback(0.8, 2, corrected, verbose=1)
        with contextlib.redirect_stdout(output):
            w, rates = train(callback, 3, momentum=0.9)
        assert w == pytest.approx(expected(warm, 0.9, corrected), rel=1e-6)  # TensorFlow's 0.9 is a float32
        assert rates == pytest.approx(warm[steps - 1 :: steps])
        told = "\nEpoch 2: finished gradual learning rate warmup to 0.8.\n"
        assert output.getvalue() == (told if hvd.rank() == 0 else "")

    Schedule = hvd.callbacks.LearningRateScheduleCallback
    w, rates = train(Schedule(0.4, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3), 4)
    assert rates == [0.5, 0.2, 0.1, 0.1]
    assert w == pytest.approx(-steps * sum(rates))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(Schedule(0.4, 0.25, start_epoch=1), 4)[1] == [0.5, 0.1, 0.1, 0.1]
        assert train(Schedule(0.4, 1.0), 1)[1] == [0.4]
        assert train(Schedule(0.4, 0.25, staircase=False), 2)[1] == [0.1, 0.1]
    texts = [(str(one.message), one.filename) for one in caught if "multiplier=0.25" in str(one.message)]
    assert [file for _, file in texts] == [__file__] * (2 if hvd.rank() == 0 else 0)
    cure = r"Horovod 0\.23 and newer compute .* for that give multiplier=(lambda epoch: 0\.25 \*\* \(epoch - 1\))\."
    for text, _ in texts[:1]:
        found = re.search(cure, text)
        assert found
        assert [eval(found[1])(epoch) for epoch in (1, 2, 3)] == [1.0, 0.25, 0.0625]
    assert train(Schedule(0.4, lambda epoch: 0.25 ** (epoch - 1), start_epoch=1), 4)[1] == [0.5, 0.4, 0.1, 0.025]
    fractions = Schedule(1.0, lambda epoch: 1 - epoch / 4, staircase=False, steps_per_epoch=2 * steps)
    assert train(fractions, 2)[1] == pytest.approx([1 - 2 / 24, 1 - 8 / 24])

    with pytest.raises(ValueError, match="initial_lr"):
        Schedule(None, 1.0)
    decay = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)
    model = make_model(0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(decay)), loss="mse")
    with pytest.raises(hvd.InvalidArgumentError, match="does not allow"):
        fit(hvd, model, callbacks=[Schedule(0.1, 2.0)])


def momenta_are_scaled_where_there_are_some(hvd: Any) -> None:
    """None of what Keras overwrites with gradients, as float8's scales."""
    for plain, name in (
        (keras.optimizers.SGD(0.5, momentum=0.9), "momentums"),
        (keras.optimizers.RMSprop(0.5, momentum=0.9), "_momentums"),
    ):
        model = make_model(seed=0)
        model.layers[0].bias.overwrite_with_gradient = True
        model.compile(hvd.DistributedOptimizer(plain), loss="mse")
        model.optimizer.build(model.trainable_variables)
        momenta = getattr(model.optimizer, name)
        assert [one is None for one in momenta] == [False, True, False, False]
        momenta[0].assign(np.full(momenta[0].shape, 8.0))
        callback = hvd.callbacks.LearningRateScheduleCallback(0.125, lambda epoch: 1.0)
        callback.set_model(model)
        callback.on_train_batch_begin(0)
        assert float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) == 0.125
        assert set(keras.ops.convert_to_numpy(momenta[0]).ravel().tolist()) == {2.0}


def files_are_those_of_the_plain_optimizer(hvd: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (make, options) in enumerate(
            [
                (keras.optimizers.Adam, {}),
                (Registered, {}),
                (Unregistered, {"custom_optimizers": [Unregistered]}),
            ]
        ):
            model = make_model(seed=1)
            model.compile(hvd.DistributedOptimizer(make(0.05)), loss=keras.losses.MeanSquaredError())
            fit(hvd, model)
            for ending in ("keras", "h5") if make is keras.optimizers.Adam else ("keras",):
                path = Path(folder) / f"{number}.{ending}"
                model.save(path)
                loaded = hvd.load_model(path, **options)
                assert isinstance(loaded.optimizer, make)
                assert loaded.optimizer._reduction.is_needed()
                known = {one.__name__: one for one in options.get("custom_optimizers", ())}
                plain = keras.models.load_model(path, custom_objects=known)
                assert isinstance(plain.optimizer, make)
                assert not hasattr(plain.optimizer, "_reduction")
                if ending == "h5":  # which Keras 3.15 reads so that no optimizer can go on
                    continue
                fit(hvd, loaded, 1)
                fit(hvd, plain, 1, alone=True)
                assert_close(weights(loaded), weights(plain), CLOSE)
                trained = weights(plain)
            fit(hvd, model, 1)
            assert_close(weights(model), trained, CLOSE)

        # The best model is rank 0's to write.
        path = Path(folder) / "best.keras"
        callback = hvd.callbacks.BestModelCheckpoint(monitor="loss")
        with pytest.raises(hvd.InvalidArgumentError, match="filepath"):
            fit(hvd, model, 1, callbacks=[callback])
        callback.filepath = str(path)
        fit(hvd, model, 1, callbacks=[hvd.callbacks.MetricAverageCallback(), callback])
        assert path.exists() == (hvd.rank() == 0)
    with pytest.raises(hvd.UnavailableError, match="legacy"):
        hvd.load_model("no.keras", legacy_opts=True)


def copies_stay_distributed(hvd: Any) -> None:
    """By copy and pickle, where Keras makes a plain optimizer of what it would write to a file."""
    optimizers: list[tuple[Any, dict[str, Any]]] = [
        (keras.optimizers.Adam(0.05), {"op": hvd.Sum, "compression": hvd.Compression.fp16, "groups": 2}),
        (keras.optimizers.SGD(0.05), {"backward_passes_per_step": 2}),
        (Registered(0.05, momentum=0.5), {"gradient_predivide_factor": 2.0}),
        (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05)), {}),
    ]
    for plain, options in optimizers:
        model = make_model(seed=1)
        model.compile(hvd.DistributedOptimizer(plain, **options), loss=keras.losses.MeanSquaredError())
        assert is_of_like(copy.deepcopy(model.optimizer), model.optimizer)  # not built yet, as Keras copies no other
        assert is_of_like(pickle.loads(pickle.dumps(model.optimizer)), model.optimizer)
        fit(hvd, model, 1)
        copies = [copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps({"a model": model}))["a model"]]
        assert model.optimizer._reduction.is_needed()
        fit(hvd, model, 1)
        for one in copies:
            assert is_of_like(one.optimizer, model.optimizer)
            fit(hvd, one, 1)
            assert_close(weights(one), weights(model), 1e-12)
        assert len(set(map(str, hvd.allgather_object([weights(one) for one in [model, *copies]])))) == 1
        cloned = keras.models.clone_model(model)
        cloned.compile_from_config(model.get_compile_config())
        assert not hasattr(cloned.optimizer, "_reduction")

    model = make_model(seed=1)
    around = keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
    for one in (around, copy.deepcopy(around), pickle.loads(pickle.dumps(around))):
        assert hasattr(one.inner_optimizer, "_reduction")
    plain = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
    model.compile(plain, loss="mse")
    for one in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)), copy.deepcopy(model).optimizer):
        assert type(one) is type(plain)
        assert not hasattr(one.inner_optimizer, "_reduction")

    local = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    local.register_local_var(model.weights[0])
    grouped = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), groups=[model.weights[:2]])
    layer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.05), local_layers=model.layers[0])
    for optimizer, text in ((local, "local variables"), (layer, "local variables"), (grouped, "groups of variables")):
        model.compile(optimizer, loss="mse")
        for one in (model, optimizer):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(hvd.InvalidArgumentError, match=rf"with {text}.*keras\.models\.clone_model"):
                    make(one)
    model.compile("sgd", loss="mse")
    model.second = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))
    with pytest.raises(hvd.InvalidArgumentError, match="DistributedOptimizer second"):
        copy.deepcopy(model)
    model.second = [hvd.DistributedOptimizer(keras.optimizers.SGD(0.05))]
    with pytest.raises(hvd.InvalidArgumentError, match="DistributedOptimizer second"):
        copy.deepcopy(model)
    inner = make_model(seed=1)
    inner.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse")
    outer = keras.Sequential([inner])
    with pytest.raises(hvd.InvalidArgumentError, match=f"DistributedOptimizer {inner.name}.optimizer"):
        copy.deepcopy(outer)

    alone = hvd.add_process_set([0])
    model = make_model(seed=1)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05), process_set=alone), loss="mse")
    assert pickle.loads(pickle.dumps(model)).optimizer._reduction.settings.process_set is alone
    hvd.remove_process_set(alone)


def is_of_like(one: Any, other: Any) -> bool:
    """Whether both are distributed, and each by itself, in the same class and with the same settings."""
    first, second = one._reduction, other._reduction
    assert one is not other
    assert first is not second
    return bool(one._plain is other._plain and first.settings == second.settings)


def loaded_models_add_up_passes_as_they_are_told(hvd: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "passes.keras"
        for average in (False, True):
            model = make_model(seed=1)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(0.1), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            model.compile(optimizer, loss="mse")
            optimizer.build(model.trainable_variables)
            model.save(path)
            fit(hvd, model)
            ways: list[dict[str, Any]] = [{"average_aggregated_gradients": average}]
            ways.append({} if average else {"backward_passes_per_step": 2})
            for options in ways:
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    loaded = hvd.load_model(path, **options)
                told = [str(one.message) for one in caught if "gradient_accumulation_steps=2" in str(one.message)]
                assert len(told) == (not options and hvd.rank() == 0)
                fit(hvd, loaded)
                assert_close(weights(loaded), weights(model), CLOSE)
        for passes in (1, 3):
            with pytest.raises(hvd.InvalidArgumentError, match=f"backward_passes_per_step={passes}"):
                hvd.load_model(path, backward_passes_per_step=passes)


def mixed_precision_trains(hvd: Any) -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_model(seed=hvd.rank())
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        fit(hvd, model, 4, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
    finally:
        keras.config.set_dtype_policy("float64")
    steps = int(keras.ops.convert_to_numpy(model.optimizer.iterations))  # the first ones overflow
    scale = float(keras.ops.convert_to_numpy(model.optimizer.dynamic_scale))
    assert 1 <= steps <= 4 * BATCHES
    assert scale == 2.0 ** (15 - (4 * BATCHES - steps))
    assert len({str(hvd.broadcast_object((steps, weights(model)), root)) for root in (0, 1)}) == 1


def functions_take_values_of_the_backend(hvd: Any) -> None:
    rank, size = hvd.rank(), hvd.size()

    def numpy(value: Any) -> Any:
        assert keras.ops.is_tensor(value)
        return np.array(keras.ops.convert_to_numpy(value)).tolist()

    mine = np.array([1.0, 10.0]) * (rank + 1)
    kept = keras.ops.convert_to_tensor(mine)
    for value in (mine, kept, keras.Variable(mine), mine.tolist()):
        assert numpy(hvd.allreduce(value)) == [1.5, 15.0]
    assert numpy(kept) == mine.tolist()
    assert numpy(hvd.allreduce(mine, op=hvd.Sum, name="sum", prescale_factor=2.0, postscale_factor=0.5)) == [3.0, 30.0]
    assert numpy(hvd.allreduce(mine, op=hvd.Max)) == [2.0, 20.0]
    assert numpy(hvd.allreduce(mine + 1 / 3, compression=hvd.Compression.fp16))[0] == pytest.approx(1.5 + 1 / 3, 1e-3)
    assert numpy(hvd.allreduce(rank + 1.0)) == 1.5
    with pytest.warns(DeprecationWarning, match="average"):
        assert numpy(hvd.allreduce(mine, average=False)) == [3.0, 30.0]
    with pytest.raises(ValueError, match="Please provide only one of them"):
        hvd.allreduce(mine, average=True, op=hvd.Sum)
    assert numpy(hvd.allgather(np.full((rank + 1, 2), float(rank)))) == [[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
    assert numpy(hvd.broadcast(mine, 1)) == [2.0, 20.0]
    assert numpy(hvd.reducescatter(np.arange(4.0) * (rank + 1), op=hvd.Sum)) == [[0.0, 3.0], [6.0, 9.0]][rank]
    ten = np.arange(4.0) + 10 * rank
    assert numpy(hvd.alltoall(ten)) == [[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]][rank]
    rows, counts = hvd.alltoall(ten, splits=[1, 3], name="splits")
    assert numpy(rows) == [[0.0, 10.0], [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]][rank]
    assert numpy(counts) == [[1, 1], [3, 3]][rank]
    assert hvd.allgather_object(rank) == list(range(size))


def what_a_backend_cannot_do_is_said(hvd: Any) -> None:
    for wrong in (
        lambda: hvd.allreduce(1.0, op="sum"),
        lambda: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op="sum"),
    ):
        with pytest.raises(hvd.InvalidArgumentError, match=r"op='sum' is a string: write op=hvd\.Sum"):
            wrong()
    backend = keras.backend.backend()
    model = make_model(seed=0)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse", jit_compile=backend != "torch")
    if backend == "tensorflow":
        with pytest.raises(hvd.UnavailableError, match="jit_compile=False"):
            fit(hvd, model, 1)
        import tensorflow as tf

        table = keras.Variable(np.zeros((4, 2)))
        indices = [hvd.rank(), 3]
        slices = tf.IndexedSlices(tf.ones((2, 2), tf.float64) * (hvd.rank() + 1), indices, (4, 2))
        for dense in (False, True):
            optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense)
            table.assign(np.zeros((4, 2)))
            optimizer.apply([slices], [table])
            assert keras.ops.convert_to_numpy(table)[:, 0].tolist() == [-0.5, -1.0, 0.0, -1.5]

        class Doubled(hvd.Compression.none):  # type: ignore[misc, name-defined]
            @staticmethod
            def decompress(value: Any, ctx: Any) -> Any:
                return value * 2

        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=Doubled)
        table.assign(np.zeros((4, 2)))
        optimizer.apply([slices], [table])
        assert keras.ops.convert_to_numpy(table)[:, 0].tolist() == [-0.5, -1.0, 0.0, -1.5]  # slices travel as they are
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        optimizer.register_local_var(table)
        table.assign(np.zeros((4, 2)))
        optimizer.apply([slices], [table])
        mine = [[-0.5, 0.0, 0.0, -0.5], [0.0, -1.0, 0.0, -1.0]]
        assert keras.ops.convert_to_numpy(table)[:, 0].tolist() == mine[hvd.rank()]
    else:
        fit(hvd, model, 1)
    if backend == "torch":
        import torch

        table = keras.Variable(np.zeros((4, 2)))
        rows = torch.full((2, 2), hvd.rank() + 1.0, dtype=torch.float64)
        sparse = torch.sparse_coo_tensor(torch.tensor([[hvd.rank(), 3]]), rows, (4, 2))
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=True)
        optimizer.apply([sparse], [table])
        assert keras.ops.convert_to_numpy(table)[:, 0].tolist() == [-0.5, -1.0, 0.0, -1.5]


def the_program_of_the_migration_page_runs(hvd: Any) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "user" / "migrate-from-horovod.md").read_text()
    section = page.split("\n## Keras\n")[1].split("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(program, "<the page's program>", "exec"), {})
    lines = output.getvalue().strip().splitlines()
    found = re.fullmatch(rf"rank {hvd.rank()} of {hvd.size()}: mean loss (\d+\.\d+)", lines[-1])
    assert found
    assert ["warmup" in line for line in lines[:-1] if line] == [True] * (hvd.rank() == 0)
    assert hvd.allgather_object(found[1]) == [found[1]] * hvd.size()


CHECKS = [
    two_ranks_train_as_one_on_the_joined_batch,
    broadcasts_begin_with_the_roots_variables,
    broadcasts_leave_each_rank_its_sums,
    metrics_are_averaged,
    metrics_of_classes_are_averaged,
    a_rank_with_more_batches_is_told,
    learning_rates_follow_their_schedules,
    momenta_are_scaled_where_there_are_some,
    files_are_those_of_the_plain_optimizer,
    copies_stay_distributed,
    loaded_models_add_up_passes_as_they_are_told,
    mixed_precision_trains,
    functions_take_values_of_the_backend,
    what_a_backend_cannot_do_is_said,
    the_program_of_the_migration_page_runs,
]
