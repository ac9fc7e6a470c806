"""Broadcasts of variables and objects, SyncBatchNormalization against one process, and training on ranks as on one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow_checks import ENV, names, near, run  # noqa: E402

import ringreduce.tensorflow as hvd  # noqa: E402

CHANNELS = 3

# --- variables and objects --------------------------------------------------------------------------------------------


def variables(rank: int) -> None:
    def make() -> list[Any]:
        return [
            tf.Variable(np.arange(6.0).reshape(2, 3) + 10 * rank),
            tf.Variable([rank, -rank]),
            tf.keras.Variable(np.full((2,), rank, np.float32)),
            tf.Variable(rank == 1),
            tf.Variable(tf.cast([rank / 3], tf.bfloat16)),
        ]

    def check(made: list[Any], root: int) -> None:
        near(made[0], np.arange(6.0).reshape(2, 3) + 10 * root)
        assert made[1].numpy().tolist() == [root, -root]
        assert made[2].numpy().tolist() == [root] * 2
        assert bool(made[3].numpy()) == (root == 1)
        assert made[4].numpy()[0] == tf.cast(root / 3, tf.bfloat16).numpy()

    def in_graph(made: list[Any], inplace: bool) -> None:
        tf.function(lambda: hvd.broadcast_variables(made, 1, inplace=inplace))()

    for inplace in (False, True):
        for root in (0, 1):
            made = make()
            hvd.broadcast_variables(made, root_rank=root, inplace=inplace)
            check(made, root)
        made = make()
        in_graph(made, inplace)
        check(made, 1)
    hvd.broadcast_variables((variable for variable in made), 0)
    hvd.broadcast_variables([], 0)
    for numbers in ((3, 1), (2, 0)):  # none of the root's meets a variable of the next call
        for form in (hvd.broadcast_variables, tf.function(hvd.broadcast_variables)):
            several = [tf.Variable([rank]) for _ in range(numbers[rank])]
            with pytest.raises(tf.errors.FailedPreconditionError, match="MismatchError"):
                form(several, 0)
            assert [one.numpy().tolist() for one in several] == [[rank]] * numbers[rank]
    with pytest.raises(
        hvd.MismatchError, match=r"\[0, 3\].*\[0, 1\].*broadcast_variables: .* other numbers of tensors"
    ):
        hvd.broadcast_variables([tf.Variable(1)] * (3, 1)[rank], 0)
    part = hvd.add_process_set([1])
    mine = tf.Variable(rank + 5)
    hvd.broadcast_variables([mine], 1, process_set=part)
    assert mine.numpy() == rank + 5
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


def objects(rank: int) -> None:
    mine = {"rank": rank, "list": [1.5, None] * (rank + 1)}
    for session in (None, "a session"):
        root = hvd.broadcast_object(mine, 1, session)
        assert root == {"rank": 1, "list": [1.5, None] * 2}
    assert hvd.broadcast_object(mine, name="named")["rank"] == 0
    assert hvd.broadcast_object_fn(root_rank=1)(mine)["rank"] == 1
    assert hvd.allgather_object(mine, name="all") == [{"rank": r, "list": [1.5, None] * (r + 1)} for r in range(2)]
    with tf.Graph().as_default():
        assert hvd.broadcast_object(rank) == 0
        assert hvd.allgather_object(rank) == [0, 1]


# --- batch normalization ----------------------------------------------------------------------------------------------


def joined(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[Any, Any]:
    """Inputs far from zero, and the weights of a loss."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * 3 + 10).astype(dtype), rng.normal(size=shape).astype(dtype)


def batch_norm(rank: int) -> None:
    """Forward, backward and running statistics; uneven shares, and an empty one."""
    keras = tf.keras
    for dtype, tolerance in (("float64", 1e-11), ("float32", 5e-5)):
        for shape, axis, options in (
            ((9, CHANNELS), -1, {}),
            ((6, 4, 2, CHANNELS), -1, {"momentum": 0.5, "epsilon": 0.1}),
            ((6, CHANNELS, 5), 1, {"scale": False, "center": False}),
        ):
            plain = keras.layers.BatchNormalization(axis=axis, dtype=dtype, **options)
            layer = hvd.SyncBatchNormalization(axis=axis, dtype=dtype, **options)
            plain.build(shape)
            layer.build(shape)
            for one in plain.trainable_weights:
                one.assign(np.random.default_rng(1).normal(size=CHANNELS))
            layer.set_weights(plain.get_weights())

            def forward_backward(layer: Any, x: Any, weight: Any, training: bool = True) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = layer(x, training=training)
                    loss = tf.reduce_sum(y * weight)
                return y, *tape.gradient(loss, [x, *layer.trainable_weights])

            graph = tf.function(forward_backward)
            for number, cut in enumerate((shape[0] // 3, 2, shape[0])):  # the last leaves rank 1 without any
                x, weight = map(tf.constant, joined(shape, dtype, number))
                mine = slice(0, cut) if rank == 0 else slice(cut, None)
                theirs = forward_backward(plain, x, weight)
                ours = (graph if number == 1 else forward_backward)(layer, x[mine], weight[mine])
                near(ours[0], theirs[0][mine], tolerance)
                near(ours[1], theirs[1][mine], tolerance)
                for own, other in zip(ours[2:], theirs[2:], strict=True):
                    near(hvd.allreduce(own, op=hvd.Sum), other, tolerance)
                for own, other in zip(layer.non_trainable_weights, plain.non_trainable_weights, strict=True):
                    near(own, other, tolerance)
            near(layer(x[mine]), plain(x)[mine], tolerance)  # inference

    # float16 is computed in float32; a mean a million times the deviation loses nothing that one process keeps.
    x, _ = joined((8, CHANNELS), "float64", 5)
    x = (x - 10) / 3 + 1e6
    mine = slice(0, 3) if rank == 0 else slice(3, None)
    make = {"dtype": "float64"}
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3)
    near(hvd.SyncBatchNormalization(**make)(tf.constant(x[mine]), training=True), expected[mine], 1e-8)
    half = hvd.SyncBatchNormalization(dtype="mixed_float16")(tf.constant(x[mine] - 1e6), training=True)
    assert half.dtype == tf.float16
    near(half, ((x - 1e6 - (x - 1e6).mean(0)) / np.sqrt(x.var(0) + 1e-3))[mine], 2e-2)

    # With a mask, the masked positions count nowhere.
    x, weight = joined((6, 4, CHANNELS), "float64", 7)
    mask = np.arange(24).reshape(6, 4) % 3 != 1
    kept = x[mask]
    mine = slice(0, 1) if rank == 0 else slice(1, None)
    layer = hvd.SyncBatchNormalization(**make, scale=False, center=False)
    inputs = tf.constant(x[mine])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = layer(inputs, training=True, mask=tf.constant(mask[mine]))
        loss = tf.reduce_sum(tf.where(mask[mine][..., None], y * weight[mine], 0.0))
    near(y, ((x - kept.mean(0)) / np.sqrt(kept.var(0) + 1e-3))[mine])
    whole = tf.Variable(kept)
    with tf.GradientTape() as reference:
        mean, variance = tf.nn.moments(whole, [0])
        total = tf.reduce_sum((whole - mean) / tf.sqrt(variance + 1e-3) * weight[mask])
    expected = np.zeros_like(x)
    expected[mask] = reference.gradient(total, whole)
    near(tape.gradient(loss, inputs), expected[mine], 1e-9)

    # In a model that is saved, and on a part of the ranks.
    model = keras.Sequential([keras.Input((CHANNELS,)), hvd.SyncBatchNormalization(momentum=0.3)])
    again = keras.models.model_from_json(model.to_json())
    assert isinstance(again.layers[-1], hvd.SyncBatchNormalization)
    assert again.layers[-1].momentum == 0.3
    alone = hvd.add_process_set([0])
    if rank == 0:
        layer = hvd.SyncBatchNormalization(process_set=alone, **make)
        near(layer(tf.constant([[1.0], [3.0]], tf.float64), training=True)[1, 0], 1 / np.sqrt(1 + 1e-3))
    for fused in (True, None):
        with pytest.raises(ValueError, match="does not support fused=True"):
            hvd.SyncBatchNormalization(fused=fused)
    with pytest.raises(ValueError, match=r"synchronized=True is for tf\.distribute"):
        hvd.SyncBatchNormalization(synchronized=True)


# --- training ---------------------------------------------------------------------------------------------------------

STEPS, BATCH, RATE = 12, 11, 0.1


def model_of(seed: int) -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((6,), dtype="float64"),
        keras.layers.Dense(16, activation="tanh", dtype="float64"),
        hvd.SyncBatchNormalization(dtype="float64"),
        keras.layers.Dense(3, dtype="float64"),
    ]
    return keras.Sequential(layers)


def batch_of(step: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(step)
    return rng.normal(size=(BATCH, 6)), rng.integers(3, size=BATCH)


def train_together(rank: int) -> list[Any]:
    """The variables after some steps of SGD with momentum, on uneven shares of each batch."""
    model = model_of(rank)  # another start on each rank, before rank 0's is broadcast
    optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.5)
    variables = model.trainable_variables
    optimizer.build(variables)
    hvd.broadcast_variables([*model.weights, *optimizer.variables], root_rank=0)

    @tf.function(reduce_retracing=True)
    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(model, images, labels)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    mine = slice(0, BATCH // 4) if rank == 0 else slice(BATCH // 4, None)
    for number in range(STEPS):
        images, labels = batch_of(number)
        step(tf.constant(images[mine]), tf.constant(labels[mine]))
    return [variable.numpy() for variable in model.variables]


def loss_of(model: Any, images: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images, training=True))
    return tf.reduce_sum(losses) / BATCH


def ranks_as_one(rank: int) -> None:
    together = train_together(rank)
    for ours, theirs in zip(hvd.allgather_object(together)[0], together, strict=True):
        assert np.array_equal(ours, theirs)
    if rank == 0:
        start = model_of(0).get_weights()
        for ours, theirs, first in zip(together, train_alone(start), start, strict=True):
            assert np.linalg.norm(ours - theirs) <= 1e-12 * np.linalg.norm(theirs)
            assert np.linalg.norm(ours - first) > 1e-3


def train_alone(start: list[Any]) -> list[Any]:
    """The same in one process with what Keras has: no collectives, the whole batch."""
    keras = tf.keras
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="float64"),
            keras.layers.Dense(16, activation="tanh", dtype="float64"),
            keras.layers.BatchNormalization(dtype="float64"),
            keras.layers.Dense(3, dtype="float64"),
        ]
    )
    model.set_weights(start)
    optimizer = keras.optimizers.SGD(RATE, momentum=0.5)
    for number in range(STEPS):
        images, labels = batch_of(number)
        with tf.GradientTape() as tape:
            loss = loss_of(model, images, labels)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return [variable.numpy() for variable in model.variables]


def random_seeds(rank: int) -> None:
    """The broadcast of the pages sends what layers learn and count, and leaves each rank the seeds of its dropout."""
    keras = tf.keras
    keras.utils.set_random_seed(rank)
    model = keras.Sequential([keras.Input((1000,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
    model(tf.random.normal((4, 1000)), training=True)
    hvd.broadcast_variables(model.weights, root_rank=0)
    state = [one.tolist() for one in model.get_weights()]
    assert len(state) == 4  # with the moving mean and variance
    assert hvd.allgather_object(state) == [state] * 2
    same = tf.constant(np.random.default_rng(0).normal(size=(4, 1000)))
    dropped = (model(same, training=True).numpy() == 0).tolist()
    first, second = hvd.allgather_object(dropped)
    assert first != second


def summation_bound(rank: int) -> None:
    """A reduced gradient is off the ranks' sum by (N - 1) eps sum|x| at most."""
    for dtype in (tf.float32, tf.float64):
        x = tf.Variable(np.random.default_rng(rank).normal(size=10_007), dtype=dtype)
        with tf.GradientTape(persistent=True) as tape:
            y = tf.reduce_sum(x**3)
        own = tf.cast(tape.gradient(y, x), tf.float64)
        reduced = hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(y, x)
        every = hvd.allgather(own[tf.newaxis]).numpy()
        bound = (len(every) - 1) * np.finfo(dtype.as_numpy_dtype).eps * np.abs(every).sum(0)
        assert np.all(np.abs(reduced.numpy().astype(np.float64) - every.sum(0)) <= bound)


CHECKS = [variables, objects, batch_norm, ranks_as_one, random_seeds, summation_bound]


def run_checks() -> list[str]:
    return run(CHECKS)


def test_functions_on_two_ranks(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(run_checks, 2, env=ENV) == [names(CHECKS)] * 2
