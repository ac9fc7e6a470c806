"""ringreduce.keras and ringreduce.tensorflow.keras with Keras 2 (tf_keras): its two kinds of optimizers, callbacks."""

from __future__ import annotations

import copy
import pickle
import sys
import tempfile
import warnings
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import keras_report_checks
import numpy as np
import pytest
import tensorflow_ranks
from processes import completed
from ranks import clean_environment
from tensorflow_ranks import ENV, close

pytestmark = pytest.mark.skipif(
    find_spec("tf_keras") is None or not tensorflow_ranks.INSTALLED, reason="tf_keras is missing"
)
KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}
STEPS, BATCH = 6, 8
REFUSED_PASSES = "backward_passes_per_step > 1 with a LossScaleOptimizer"


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_only_the_keras_in_use_is_imported(keras: str) -> None:
    other = {"keras": "tf_keras", "tf_keras": "keras"}[keras]
    program = (
        "import sys, ringreduce.keras, ringreduce.tensorflow.keras, ringreduce.tensorflow as hvd\n"
        "hvd.SyncBatchNormalization\n"
        f"assert {keras!r} in sys.modules\n"
        f"assert not [name for name in sys.modules if name.partition('.')[0] == {other!r}]\n"
    )
    chosen = KERAS_2 if keras == "tf_keras" else {"KERAS_BACKEND": "tensorflow"}
    done = completed([sys.executable, "-c", program], env=clean_environment() | ENV | chosen)
    assert done.returncode == 0, done.stderr


def test_keras_2_trains_as_horovod_did() -> None:
    # Processes of their own: the server that ranks are forked from has imported Keras 3.
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_keras2; "
    program += "print(test_keras2.everything())"
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2", sys.executable, "-c", program]
    done = completed(command, env=clean_environment() | ENV | KERAS_2)
    assert done.stdout.splitlines().count("done") == 2, done.stdout + done.stderr


def everything() -> str:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow.keras as hvd

    hvd.init()
    assert tf.keras.__name__.startswith("tf_keras") or "tf_keras" in tf.keras.layers.Layer.__module__
    tf.keras.backend.set_floatx("float64")  # to which fit() casts data
    optimizers = tf.keras.optimizers
    for make in (optimizers.SGD, optimizers.legacy.SGD):
        trains_as_one(tf, hvd, make)
        aggregates(tf, hvd, make)
        keeps_local_variables(tf, hvd, make)
        refuses_what_would_mix_local_gradients_into_shared_ones(tf, hvd, make)
        skips_together(tf, hvd, make)
        saves(tf, hvd, make)
        compares_what_ranks_start_from(tf, hvd, make)
        scales_alike(tf, hvd, make)
        copies_stay_distributed(tf, hvd, make)
    callbacks(tf, hvd)
    keras_report_checks.with_either_keras(tf.keras, hvd)
    functions(tf, hvd)
    from_other_packages(tf, hvd)
    in_a_session(tf, hvd)
    hvd.shutdown()
    return "done"


def model_of(tf: Any, seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((4,), dtype="float64"),
            layers.Dense(5, activation="tanh", dtype="float64"),
            layers.Dense(2, dtype="float64"),
        ]
    )


def data(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return rng.normal(size=(BATCH, 4)), rng.normal(size=(BATCH, 2))


def trains_as_one(tf: Any, hvd: Any, make: Any) -> None:
    """Two ranks on half the batch each as one process on the whole, by fit() and by minimize()."""
    rank = hvd.rank()
    model = model_of(tf, rank)
    optimizer = hvd.DistributedOptimizer(make(0.1, momentum=0.5))
    assert isinstance(optimizer, make)
    model.compile(optimizer, loss="mse")
    alone = model_of(tf, 0)
    plain = make(0.1, momentum=0.5)
    half = slice(0, BATCH // 2) if rank == 0 else slice(BATCH // 2, None)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    for step in range(STEPS):
        x, y = data(step)
        model.fit(x[half], y[half], batch_size=BATCH // 2, verbose=0, callbacks=[start] if step == 0 else [])
        weights = alone.trainable_variables
        plain.minimize(lambda x=x, y=y: tf.reduce_mean((alone(x) - y) ** 2), weights)
    for ours, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    with pytest.raises(hvd.InvalidArgumentError, match="a DistributedOptimizer already"):
        hvd.DistributedOptimizer(optimizer)


def aggregates(tf: Any, hvd: Any, make: Any) -> None:
    """Every second pass changes the variable, by the sum or the mean of both; `iterations` counts passes."""
    for average in (False, True):
        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(
            make(1.0), backward_passes_per_step=2, average_aggregated_gradients=average, sparse_as_dense=True
        )

        @tf.function
        def step(scale: Any, variable: Any = variable, optimizer: Any = optimizer) -> None:
            optimizer.minimize(lambda: scale * tf.reduce_sum(tf.gather(variable, [0])), [variable])

        expected = 1.0
        for number in range(4):
            step(tf.constant(number + hvd.rank() + 0.5))
            if number % 2 == 1:
                expected -= (2 * number + 1) / (2 if average else 1)  # number + 1 is a pass's mean over the ranks
            close(variable, [expected, 2.0])
            assert int(optimizer.iterations) == number + 1
            assert int(optimizer._agg_helper.counter) == (number + 1) % 2
    applies_what_a_tape_has_reduced(tf, hvd, make)


def applies_what_a_tape_has_reduced(tf: Any, hvd: Any, make: Any) -> None:
    """At once, before the first pass and after the last; and a pass's gradients in two calls."""
    import ringreduce.tensorflow as of_tensorflow

    x, y = tf.Variable(0.0), tf.Variable(0.0)
    optimizer = hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2)
    if hasattr(optimizer, "build"):  # not legacy: Keras wants to know all variables before the first step
        optimizer.build([x, y])
    for has_passes in (False, False, True):
        with of_tensorflow.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = x * (hvd.rank() + 1.0)
        if has_passes:
            for _ in range(4):
                pairs = optimizer.compute_gradients(lambda: x + y, [x, y])
                optimizer.apply_gradients(pairs[:1])
                optimizer.apply_gradients(pairs[1:])
            close(y, -4.0)
        optimizer.apply_gradients([(tape.gradient(loss, x), x)])
    close(x, -1.5 * 3 - 4.0)


def keeps_local_variables(tf: Any, hvd: Any, make: Any) -> None:
    rank = hvd.rank()
    layer = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    shared = tf.Variable([[1.0]], dtype=tf.float64)
    x = tf.constant([[rank + 1.0]], tf.float64)
    optimizer = hvd.PartialDistributedOptimizer(make(1.0), local_layers=layer)  # not built yet
    optimizer.minimize(lambda: tf.reduce_sum(layer(x)) + tf.reduce_sum(shared * x), lambda: [layer.kernel, shared])
    close(layer.kernel, [[1 - (rank + 1) / 2]])
    for wrong in (layer, layer.kernel.numpy(), [shared]):
        with pytest.raises(hvd.InvalidArgumentError, match=r"must be of tf\.Variable type"):
            optimizer.register_local_var(wrong)
    close(shared, [[1 - 1.5]])
    own = tf.Variable([[1.0]], dtype=tf.float64)
    optimizer = hvd.DistributedOptimizer(make(1.0))
    optimizer.register_local_var(own)
    again = optimizer.from_config(optimizer.get_config())
    again.minimize(lambda: tf.reduce_sum((own + shared) * x), [own, shared])
    close(own, [[1 - (rank + 1) / 2]])
    close(shared, [[1 - 2 * 1.5]])


def refuses_what_would_mix_local_gradients_into_shared_ones(tf: Any, hvd: Any, make: Any) -> None:
    """A norm of all gradients, and a look at whether all are finite, in which each rank's own are."""
    Scaled = tf.keras.mixed_precision.LossScaleOptimizer
    for text, wrap in (
        ("global_clipnorm=0.5", lambda local: hvd.PartialDistributedOptimizer(make(1.0, global_clipnorm=0.5), **local)),
        ("leave out a step alone", lambda local: hvd.PartialDistributedOptimizer(Scaled(make(1.0)), **local)),
        ("leave out a step alone", lambda local: Scaled(hvd.PartialDistributedOptimizer(make(1.0), **local))),
    ):
        layer = tf.keras.layers.Dense(1, dtype="float64")
        shared = tf.Variable([[1.0]], dtype=tf.float64)

        def loss(layer: Any = layer, shared: Any = shared) -> Any:
            return tf.reduce_sum(layer(shared))

        optimizer = wrap({"local_layers": layer})
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            optimizer.minimize(loss, lambda layer=layer, shared=shared: [layer.kernel, shared])


def skips_together(tf: Any, hvd: Any, make: Any) -> None:
    """With loss scaling all ranks leave out the step in which one has an infinite gradient."""
    variable = tf.Variable(1.0)
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(make(1.0), initial_scale=4.0)
    with pytest.raises(hvd.InvalidArgumentError, match=REFUSED_PASSES):
        hvd.DistributedOptimizer(scaled, backward_passes_per_step=2)
    optimizer = hvd.DistributedOptimizer(scaled)
    for largest, expected in ((float("inf"), 1.0), (2.0, 0.5)):
        factor = largest if hvd.rank() == 0 else -1.0

        optimizer.minimize(lambda factor=factor: variable * factor, [variable])
        close(variable, expected)
    keras_scales_no_sums_of_passes(tf, hvd, make)


def keras_scales_no_sums_of_passes(tf: Any, hvd: Any, make: Any) -> None:
    """Where Keras scales around ours, as compile() has it do, a rank would leave out a pass alone."""
    Scaled = tf.keras.mixed_precision.LossScaleOptimizer
    variable = tf.Variable(1.0)
    alone = hvd.add_process_set([0])
    for process_set, refused in ((hvd.global_process_set, True), (alone, False)):
        scaled = Scaled(hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2, process_set=process_set))
        before = hvd.stats()["operations"]
        with pytest.raises(hvd.InvalidArgumentError, match=REFUSED_PASSES) if refused else nullcontext():
            scaled.minimize(lambda: variable * 1.0, [variable])
        assert hvd.stats()["operations"] == before
    hvd.remove_process_set(alone)
    fixed = {"dynamic": False, "initial_scale": 4.0}
    for scaled in (
        Scaled(hvd.DistributedOptimizer(make(1.0), backward_passes_per_step=2), **fixed),
        hvd.DistributedOptimizer(Scaled(make(1.0), **fixed), backward_passes_per_step=2),
    ):
        variable.assign(8.0)
        for step in (1.0, 2.0):
            scaled.minimize(lambda step=step: variable * (hvd.rank() + step), [variable])
        close(variable, 8.0 - (1.5 + 2.5))
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(2)])
        for passes, refused in ((2, True), (1, False)):
            model.compile(hvd.DistributedOptimizer(make(0.1), backward_passes_per_step=passes), loss="mse")
            assert isinstance(model.optimizer.inner_optimizer, make)
            # Of which a compiled step makes an error of TensorFlow's with that text.
            with (
                pytest.raises(Exception, match=f"InvalidArgumentError: {REFUSED_PASSES}") if refused else nullcontext()
            ):
                start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
                model.fit(*data(hvd.rank()), batch_size=4, verbose=0, callbacks=[start])
    finally:
        tf.keras.mixed_precision.set_global_policy("float64")


def saves(tf: Any, hvd: Any, make: Any) -> None:
    class Mine(make):  # type: ignore[misc]
        pass

    for kind in (make, Mine):
        model = model_of(tf, 0)
        model.compile(hvd.DistributedOptimizer(kind(0.25, momentum=0.5)), loss="mse")
        model.train_on_batch(*data(hvd.rank()))
        again = model.optimizer.from_config(model.optimizer.get_config())
        assert again.get_config() == model.optimizer.get_config()
        assert again._agg_helper is None
        with tempfile.TemporaryDirectory() as folder:
            is_legacy = issubclass(make, tf.keras.optimizers.legacy.Optimizer)
            for suffix in (".h5",) if is_legacy else (".keras", ".h5"):  # .keras files have no state of legacy ones
                file = Path(folder) / f"model{suffix}"
                model.save(file)
                if kind is make:
                    assert not hasattr(tf.keras.models.load_model(file).optimizer, "_agg_helper")
                loaded = hvd.load_model(file, custom_optimizers=[Mine])
                assert isinstance(loaded.optimizer, kind)
                assert hasattr(loaded.optimizer, "_agg_helper")
                for one, other in zip(loaded.optimizer.variables(), model.optimizer.variables(), strict=True):
                    close(one, other)
                passes = {"backward_passes_per_step": 2, "average_aggregated_gradients": True}
                told = hvd.load_model(file, custom_optimizers=[Mine], **passes).optimizer._reduction.settings
                assert {name: getattr(told, name) for name in passes} == passes
                loaded.train_on_batch(*data(5 + hvd.rank()))
                mine = [weight.tolist() for weight in loaded.get_weights()]
                assert hvd.allgather_object(mine) == [mine] * 2


def said(train: Any) -> list[str]:
    """The warnings of this rank about what the ranks start from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(one.message) for one in caught if "first step: " in str(one.message)]


def compares_what_ranks_start_from(tf: Any, hvd: Any, make: Any) -> None:
    """One warning on rank 0 where fit() or a loop forgets to broadcast, none where it does not."""

    def warned(train: Any) -> list[int]:
        return hvd.allgather_object(len(said(train)))

    for broadcasts in (True, False):
        model = model_of(tf, hvd.rank())
        model.compile(hvd.DistributedOptimizer(make(0.1, momentum=0.5)), loss="mse")
        told = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)] if broadcasts else []

        def fit(model: Any = model, told: Any = told) -> None:
            model.fit(*data(hvd.rank()), batch_size=4, epochs=2, verbose=0, callbacks=told)

        assert warned(fit) == ([0, 0] if broadcasts else [1, 0])
        variable = tf.Variable([float(hvd.rank())])
        optimizer = hvd.DistributedOptimizer(make(1.0))

        def loop(variable: Any = variable, optimizer: Any = optimizer, broadcasts: bool = broadcasts) -> None:
            for step in range(3):
                optimizer.minimize(lambda: tf.reduce_sum(variable), [variable])
                if step == 0 and broadcasts:
                    hvd.broadcast_variables([variable], 0)
                    hvd.broadcast_variables(optimizer.variables(), 0)

        assert warned(loop) == ([0, 0] if broadcasts else [1, 0])


def scales_alike(tf: Any, hvd: Any, make: Any) -> None:
    """A loss scale that rank 0 alone has restored: the broadcast takes it along; without one it is warned of."""
    Scaled = tf.keras.mixed_precision.LossScaleOptimizer
    rank = hvd.rank()
    for around in (
        lambda rate: hvd.DistributedOptimizer(Scaled(make(rate), initial_scale=4.0)),
        lambda rate: Scaled(hvd.DistributedOptimizer(make(rate)), initial_scale=4.0),
    ):
        model = model_of(tf, 0)
        model.compile(around(0.1), loss="mse")
        restore(model.optimizer, rank)
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        assert said(lambda model=model, start=start: fit_once(hvd, model, start)) == []
        scale, counter = float(model.optimizer.loss_scale), int(model.optimizer.dynamic_counter)
        assert (scale, counter) == (2.0**20, 8)
        mine = [weight.tolist() for weight in model.get_weights()]
        assert hvd.allgather_object(mine) == [mine] * 2

        model = model_of(tf, 0)
        model.compile(around(0.0), loss="mse")  # weights stay alike: only the scale differs
        restore(model.optimizer, rank)
        variable = tf.Variable([1.0])
        optimizer = around(0.0)
        restore(optimizer, rank)

        def loop(variable: Any = variable, optimizer: Any = optimizer) -> None:
            for _ in range(2):
                optimizer.minimize(lambda: tf.reduce_sum(variable), [variable])

        for train in (lambda model=model: fit_once(hvd, model), loop):
            assert ["loss_scale" in one for one in said(train)] == ([True] if rank == 0 else [])


def restore(optimizer: Any, rank: int) -> None:
    """What reading a checkpoint on rank 0 does to its loss scale."""
    if rank == 0:
        optimizer._loss_scale.current_loss_scale.assign(2.0**20)
        optimizer._loss_scale.counter.assign(7)


def fit_once(hvd: Any, model: Any, *callbacks: Any) -> None:
    model.fit(*data(hvd.rank()), batch_size=BATCH, verbose=0, callbacks=list(callbacks))


def copies_stay_distributed(tf: Any, hvd: Any, make: Any) -> None:
    """Keras 2 copies a model by a file, which has a plain optimizer: the copy is distributed again."""
    x, y = data(hvd.rank())
    inner = model_of(tf, 0)
    inner.compile(hvd.DistributedOptimizer(make(0.1)), loss="mse")
    for one in (copy.copy(inner), copy.deepcopy([inner])[0], pickle.loads(pickle.dumps(inner))):
        assert type(one.optimizer) is not make
        one.fit(x, y, batch_size=len(x), verbose=0)
        trained = [weight.tolist() for weight in one.get_weights()]
        assert hvd.allgather_object(trained) == [trained] * hvd.size()
    around = tf.keras.Sequential([inner])
    around.compile(make(0.1), loss="mse")
    several = model_of(tf, 0)
    several.others = {"second": hvd.DistributedOptimizer(make(0.1))}
    local = model_of(tf, 0)
    local.compile(hvd.DistributedOptimizer(make(0.1)), loss="mse")
    local.optimizer.register_local_var(local.trainable_variables[0])
    unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    unbuilt.compile(hvd.DistributedOptimizer(make(0.1)), loss="mse")
    for model, what in (
        (around, r"DistributedOptimizer \w+\.optimizer, and train alone"),
        (several, "DistributedOptimizer others, and train alone"),
        (local, "with local variables cannot be copied"),
        (unbuilt, "that has no variables yet cannot be copied"),
    ):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(hvd.InvalidArgumentError, match=what):
                copied(model)
    plain = model_of(tf, 0)
    plain.compile(make(0.1), loss="mse")
    for one in (copy.copy(plain), copy.deepcopy([plain])[0], pickle.loads(pickle.dumps(plain))):
        assert type(one.optimizer) is make
        close(one.get_weights()[0], plain.get_weights()[0])


def callbacks(tf: Any, hvd: Any) -> None:
    rank = hvd.rank()
    for optimizer in (
        tf.keras.optimizers.SGD(1.0, momentum=0.5),
        tf.keras.optimizers.legacy.SGD(1.0, momentum=0.5),
        tf.keras.optimizers.Adam(1.0),
    ):
        model = model_of(tf, rank)
        model.compile(hvd.DistributedOptimizer(optimizer), loss="mse")
        local = model.layers[0].kernel
        before = local.numpy()
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=local)
        with pytest.raises(hvd.InvalidArgumentError, match=r"must be of tf\.Variable type.*this is a str"):
            hvd.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=["kernel"])
        warmup = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.02, warmup_epochs=2)
        later = hvd.callbacks.LearningRateScheduleCallback(initial_lr=0.02, multiplier=0.1, start_epoch=2)
        x, y = data(rank)
        told = [start, hvd.callbacks.MetricAverageCallback(), warmup, later]
        history = model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=told).history
        close(np.array(history["lr"]), np.array([0.015, 0.02, 0.002]))
        assert hvd.allgather_object(history["loss"])[0] == history["loss"]
        assert not np.array_equal(before, local.numpy())
        every = hvd.allgather_object([local.numpy().tolist(), model.layers[-1].bias.numpy().tolist()])
        assert every[0][0] != every[1][0]
        assert every[0][1] == every[1][1]
    model = model_of(tf, rank)
    model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.0)), loss="mse")
    loaded = model_of(tf, 7).get_weights()
    restore = tf.keras.callbacks.LambdaCallback(on_train_begin=lambda _: model.set_weights(loaded))
    told = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), restore]  # which the root alone has
    model.fit(x, y, batch_size=4, verbose=0, callbacks=told[: 2 - rank])
    for ours, theirs in zip(model.get_weights(), loaded, strict=True):
        close(ours, theirs)
    logs = {"f1": tf.constant([1.0, 3.0]) * (1 + rank), "loss": 1.0 + rank}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert (logs["f1"].tolist(), logs["loss"]) == ([1.5, 4.5], 1.5)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "best.h5"
        best = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath=str(file))
        model.fit(x, y, epochs=1, verbose=0, callbacks=[best])
        assert file.exists() == (rank == 0)
    with pytest.raises(hvd.UnavailableError, match="LocalSGDCallback is for Keras 3"):
        hvd.callbacks.LocalSGDCallback(2)


def functions(tf: Any, hvd: Any) -> None:
    rank = hvd.rank()
    close(hvd.allreduce([rank, 1.0]), [0.5, 1.0])
    close(hvd.allgather([[rank + 1.0]]), [[1.0], [2.0]])
    close(hvd.broadcast(float(rank), 1), 1.0)
    close(hvd.reducescatter([1.0, 2.0], op=hvd.Sum), [2.0 * (rank + 1)])
    close(hvd.alltoall([rank + 1.0, rank + 3.0]), [[1.0, 2.0], [3.0, 4.0]][rank])
    variable = tf.Variable([float(rank)])
    hvd.broadcast_variables([variable], 1)
    close(variable, [1.0])
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def from_other_packages(tf: Any, hvd: Any) -> None:
    """hvd.DistributedOptimizer of ringreduce.tensorflow takes them; SyncBatchNormalization is a layer of Keras 2."""
    import ringreduce.tensorflow as of_tensorflow

    optimizer = of_tensorflow.DistributedOptimizer(tf.keras.optimizers.legacy.Adam(0.1))
    assert isinstance(optimizer, tf.keras.optimizers.legacy.Adam)
    with pytest.raises(hvd.InvalidArgumentError, match="takes an optimizer of tf_keras here"):
        hvd.DistributedOptimizer("sgd")
    for axis, shape in ((-1, (6, 3)), (1, (6, 3, 4)), ([1, 3], (6, 3, 4, 2))):
        x = np.random.default_rng(0).normal(size=shape) * 3 + 10
        mine = slice(0, 2) if hvd.rank() == 0 else slice(2, None)
        layer = of_tensorflow.SyncBatchNormalization(axis=axis)
        plain = tf.keras.layers.BatchNormalization(axis=axis)
        assert isinstance(layer, tf.keras.layers.BatchNormalization)
        expected = plain(x, training=True)[mine]
        np.testing.assert_allclose(layer(x[mine], training=True), expected, rtol=1e-10)
        np.testing.assert_allclose(layer.moving_variance, plain.moving_variance, rtol=1e-10)
        slopes = np.random.default_rng(1).normal(size=shape)
        gradients = []
        for one, part in ((layer, mine), (plain, slice(None))):
            inputs = tf.constant(x[part])
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = tf.reduce_sum(one(inputs, training=True) * slopes[part])
            gradients.append(tape.gradient(loss, inputs))
        np.testing.assert_allclose(gradients[0], gradients[1][mine], rtol=1e-9, atol=1e-12)


def in_a_session(tf: Any, hvd: Any) -> None:
    """Training in a graph of TensorFlow 1, where Keras 2 asks for get_gradients()."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.keras.backend.set_session(session)
        model = model_of(tf, hvd.rank())
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1, momentum=0.5))
        model.compile(optimizer, loss="mse")
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        average = hvd.callbacks.MetricAverageCallback()
        model.fit(*data(hvd.rank()), batch_size=4, epochs=2, verbose=0, callbacks=[start, average])
        mine = [weight.tolist() for weight in model.get_weights()]
        assert hvd.allgather_object(mine) == [mine] * 2
        close(hvd.allreduce([float(hvd.rank())]), [0.5])

        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False, input_shape=(2,), dtype="float64")])
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.legacy.SGD(0.1), backward_passes_per_step=2)
        model.compile(optimizer, loss=lambda _, prediction: prediction)
        model.set_weights([np.ones((2, 1))])
        for batches, moved in ((2, 2), (1, 2), (1, 4)):
            x = np.full((2 * batches, 2), hvd.rank() + 1.0)
            model.fit(x, np.zeros((2 * batches, 1)), batch_size=2, verbose=0)
            close(model.get_weights()[0], np.full((2, 1), 1 - 0.15 * moved))
