"""Optimizers of TensorFlow 1, eagerly, in tf.function and in sessions, and of Keras; Adasum. On three ranks."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_checks import BASE, ONE_THREAD, near

import ringreduce.tensorflow as hvd

v1 = tf.compat.v1


def adasum(rank: int) -> None:
    with pytest.raises(NotImplementedError, match="non-power of 2 ranks"):
        hvd.allreduce(tf.ones(2), op=hvd.Adasum)
    pair = hvd.add_process_set([0, 1])
    stepping(rank, pair)
    if rank == 2:
        return
    inputs = [np.array([[1.0, 0.0, 2.0]]), np.array([[0.0, 3.0, 0.0]]), np.array([[1.0, 0.0, 2.0]])]

    def together() -> Any:
        return hvd.grouped_allreduce(
            [tf.constant(inputs[rank]), tf.constant(inputs[2], tf.float32)], op=hvd.Adasum, process_set=pair
        )

    for call in (together, tf.function(together)):
        orthogonal, parallel = call()
        near(orthogonal, inputs[0] + inputs[1])
        near(parallel, inputs[2])
    with pytest.raises(ValueError, match="floating-point"):
        hvd.allreduce(tf.constant([1]), op=hvd.Adasum, process_set=pair)


def stepping(rank: int, pair: Any) -> None:
    """Adasum of what the ranks' own steps change: of x orthogonal, of y parallel, eagerly and in a session."""
    slope = np.array([[3.0, 0.0], [0.0, 5.0], [1.0, 1.0]])[rank]
    moved = slope if rank == 2 else np.array([3.0, 5.0])

    def made() -> Any:
        plain = v1.train.MomentumOptimizer(0.5, momentum=0.5)
        return hvd.DistributedOptimizer(plain, op=hvd.Adasum, process_set=pair)

    x, y = tf.Variable([1.0, 1.0], dtype=tf.float64), tf.Variable(2.0)
    optimizer = made()

    def loss(x: Any, y: Any) -> Any:
        return tf.reduce_sum(x * slope) + tf.cast(y * 4.0, tf.float64)

    for steps in (1.0, 2.5):  # the momentum of the second step is 1.5 times the gradient
        optimizer.minimize(lambda: loss(x, y), var_list=[x, y])
        near(x, 1.0 - 0.5 * steps * moved)
        near(y, 2.0 - 0.5 * steps * 4, 1e-6)
    assert optimizer.get_slot_names() == ["momentum"]
    near(optimizer.get_slot(x, "momentum"), 1.5 * slope)
    assert len(optimizer.variables()) == 2
    if pair.included():
        of_other_heads(rank, op=hvd.Adasum, process_set=pair)
    for resource in (True, False):
        with tf.Graph().as_default(), v1.Session(config=ONE_THREAD) as session:
            x = v1.Variable([1.0, 1.0], dtype=tf.float64, use_resource=resource)
            y = v1.Variable(2.0, use_resource=resource)
            step = v1.train.get_or_create_global_step()
            train = made().minimize(loss(x, y), global_step=step)
            session.run(v1.global_variables_initializer())
            for count, steps in enumerate((1.0, 2.5), 1):
                session.run(train)
                near(session.run(x), 1.0 - 0.5 * steps * moved)
                near(session.run(y), 2.0 - 0.5 * steps * 4, 1e-6)
                assert session.run(step) == count


def of_other_heads(rank: int, **settings: Any) -> None:
    """Variables of one shape, of which each rank uses another one, in each pass."""
    heads = [tf.Variable([0.0]) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **settings)

    def minimize() -> None:
        optimizer.minimize(lambda: tf.reduce_sum(heads[rank % 2]), var_list=heads)

    for _ in range(1, settings.get("backward_passes_per_step", 1)):
        minimize()
    with pytest.raises((tf.errors.OpError, hvd.MismatchError), match="Mismatched"):
        minimize()


def legacy_eager(rank: int) -> None:
    for passes, average, rate in ((1, False, 1.0), (2, False, 2.0), (2, True, 1.0)):
        x, own = tf.Variable(BASE), tf.Variable(BASE)
        plain = v1.train.MomentumOptimizer(0.5, momentum=0.0)
        optimizer = hvd.DistributedOptimizer(
            plain, backward_passes_per_step=passes, average_aggregated_gradients=average, op=hvd.Average
        )
        assert isinstance(optimizer, v1.train.Optimizer)
        optimizer.register_local_var(own)

        def loss(x: Any = x, own: Any = own) -> Any:
            return tf.reduce_sum(x * (rank + 1.0)) + tf.reduce_sum(own * (rank + 1.0))

        for step in range(1, 5):
            optimizer.minimize(loss, var_list=[x, own])
            steps = step // passes
            near(x, BASE - 0.5 * rate * 2 * steps)
            near(own, BASE - 0.5 * rate * (rank + 1) / 3 * steps)
        assert optimizer.get_slot_names() == ["momentum"]
        near(optimizer.get_slot(x, "momentum"), np.full((2, 3), 2.0 * rate))
        assert len(optimizer.variables()) == len(plain.variables())

    x = tf.Variable(BASE)
    optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=3)

    @tf.function
    def step() -> None:
        optimizer.minimize(lambda: tf.reduce_sum(x * (rank + 1.0)), var_list=[x])

    for count in range(1, 8):
        step()
        near(x, BASE - 2 * 3 * (count // 3))

    heads = [tf.Variable([0.0]) for _ in range(2)]  # of one shape, and each pass uses another one
    passes = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    passes.compute_gradients(lambda: tf.reduce_sum(heads[0]), var_list=heads)
    with pytest.raises(hvd.InvalidArgumentError, match="the same ones in the same order in every pass"):
        passes.compute_gradients(lambda: tf.reduce_sum(heads[1]), var_list=heads)

    of_other_heads(rank, backward_passes_per_step=2)

    for wrong, text in (
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"backward_passes_per_step": 2.5}, "must be > 0, and a whole number, not 2.5"),
        ({"compression": "fp16"}, "compression='fp16' is no compressor"),
        ({"groups": "all"}, "groups should be"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor not supported"),
        ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "Adasum does not support"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **wrong)
    with pytest.raises(ValueError, match="op == Adasum is not supported yet with Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Adasum)
    with pytest.raises(hvd.UnavailableError, match="op=Adasum supports neither groups"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, groups=2)
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="doesn't inherit from either legacy TensorFlow or Keras optimizer"):
        hvd.DistributedOptimizer(object())


def legacy_loss_scales(rank: int) -> None:
    """A loss scale of TensorFlow 1 leaves out a step on all ranks or on none; where it could not, it is refused."""
    Scaled, own, infinite = v1.mixed_precision.MixedPrecisionLossScaleOptimizer, tf.Variable(1.0), float("inf")

    def made(around: bool, dynamic: bool = True, local: bool = False, **options: Any) -> tuple[Any, Any]:
        scale = v1.mixed_precision.DynamicLossScale(4.0) if dynamic else v1.mixed_precision.FixedLossScale(4.0)
        plain = v1.train.GradientDescentOptimizer(1.0)
        ours = hvd.DistributedOptimizer(plain if around else Scaled(plain, scale), **options)
        if local:
            ours.register_local_var(own)
        return Scaled(ours, scale) if around else ours, scale

    for around, options, text in (
        (True, {"backward_passes_per_step": 2}, r"DistributedOptimizer\(MixedPrecisionLossScaleOptimizer"),
        (True, {"op": hvd.Adasum}, r"DistributedOptimizer\(MixedPrecisionLossScaleOptimizer"),
        (True, {"local": True}, "leave out a step alone"),
        (False, {"local": True}, "leave out a step alone"),
    ):
        before = hvd.stats()["operations"]
        for call in (lambda step: step(), lambda step: tf.function(step, autograph=False)()):
            x, (optimizer, _) = tf.Variable(1.0), made(around, **options)

            def minimize(x: Any = x, optimizer: Any = optimizer) -> None:
                optimizer.minimize(lambda: x + own, var_list=[x, own])

            with pytest.raises(hvd.InvalidArgumentError, match=text):
                call(minimize)
        assert hvd.stats()["operations"] == before
    fixed, _ = made(True, dynamic=False, local=True)
    fixed.minimize(lambda: x + own * (rank + 1.0), var_list=[x, own])  # it leaves out nothing
    near(own, 1 - (rank + 1) / 3, 1e-6)

    # In the first step, or its first pass, and on rank 0 alone there is an infinite gradient; then there is none.
    for around, passes in ((True, 1), (False, 1), (False, 2)):
        x, (optimizer, scale) = tf.Variable(1.0), made(around, backward_passes_per_step=passes)
        for step, (expected, left) in enumerate(((1.0, 2.0), (1.0 - 2 * passes, 2.0))):
            for number in range(passes):
                factor = infinite if (rank, step, number) == (0, 0, 0) else rank + 1.0
                optimizer.minimize(lambda x=x, factor=factor: x * factor, var_list=[x])
            near(x, expected)
            near(scale(), left)


def legacy_checkpoints(rank: int) -> None:
    """A fresh optimizer goes on from tf.train.Checkpoint as the saved one does, and files are the plain optimizer's."""
    scaling = v1.mixed_precision
    plain_ones = (
        lambda: v1.train.MomentumOptimizer(0.1, 0.9),
        lambda: v1.train.AdamOptimizer(0.1),
        lambda: scaling.MixedPrecisionLossScaleOptimizer(
            v1.train.AdamOptimizer(0.1), scaling.DynamicLossScale(4.0, increment_period=2)
        ),
    )
    pair = hvd.add_process_set([1, 2])
    for options in ({"op": hvd.Average}, {"op": hvd.Adasum, "process_set": pair}):
        for plain in plain_ones:
            for before, after in ((True, True), (False, True), (True, False)):
                goes_on_from_a_checkpoint(rank, plain, [options if ours else None for ours in (before, after)])
    hvd.remove_process_set(pair)


def goes_on_from_a_checkpoint(rank: int, plain: Callable[[], Any], wrapped: list[dict[str, Any] | None]) -> None:
    """wrapped: by what options what is saved, and what it is loaded into, are distributed; None: they are not."""

    def made(options: dict[str, Any] | None) -> tuple[Any, Any, Any]:
        optimizer, variable = plain(), tf.Variable(BASE, dtype=tf.float32)  # loss scales take no float64
        if options is not None:
            optimizer = hvd.DistributedOptimizer(optimizer, **options)
        return optimizer, variable, tf.train.Checkpoint(variable=variable, optimizer=optimizer)

    def take(count: int, optimizer: Any, variable: Any) -> None:
        for _ in range(count):  # the gradient is the same on all ranks, so that plain optimizers take the same steps
            optimizer.minimize(lambda: tf.reduce_sum(variable**2), var_list=[variable])

    saved, of_saved, checkpoint = made(wrapped[0])
    take(3, saved, of_saved)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(f"{folder}/state")
        for steps_before in (0, 1):  # without its slots, and with some that the file replaces
            loaded, of_loaded, checkpoint = made(wrapped[1])
            take(steps_before, loaded, of_loaded)
            status = checkpoint.restore(path)
            take(1, loaded, of_loaded)
            status.assert_consumed()
            if steps_before == 0:
                take(1, saved, of_saved)
            near(of_loaded, of_saved, 1e-5)
            for name in saved.get_slot_names():
                near(loaded.get_slot(of_loaded, name), saved.get_slot(of_saved, name), 1e-5)


def legacy_graph(rank: int) -> None:
    """A script of TensorFlow 1: the hook broadcasts, the optimizer reduces; dense and sparse, also in passes."""
    for passes, resource, sparse_as_dense in ((1, True, False), (1, False, True), (2, True, True)):
        with tf.Graph().as_default():
            x = v1.Variable(BASE + 100 * rank, use_resource=resource, dtype=tf.float64)
            table = v1.Variable(np.zeros((4, 2)) + rank, use_resource=resource, dtype=tf.float64)
            factor = v1.placeholder(tf.float64, [])
            loss = tf.reduce_sum(x) * factor + tf.reduce_sum(tf.gather(table, [rank, 3])) * factor
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0),
                backward_passes_per_step=passes,
                op=hvd.Sum,
                sparse_as_dense=sparse_as_dense,
            )
            step = v1.train.get_or_create_global_step()
            train = optimizer.minimize(loss, global_step=step)
            hooks = [hvd.BroadcastGlobalVariablesHook(0)]
            with v1.train.MonitoredTrainingSession(hooks=hooks, config=ONE_THREAD) as session:
                near(session.run(x), BASE)
                near(session.run(table), np.zeros((4, 2)))
                for count in range(1, 5):
                    session.run(train, {factor: rank + 1.0})
                    near(session.run(x), BASE - 6 * (count // passes) * passes)
                    moved = (count // passes) * passes
                    near(session.run(table), -np.outer([1, 2, 3, 6], [1, 1]) * moved)
                    assert session.run(step) == count  # each pass, as in Horovod

    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.Variable([1.0 + rank]), v1.Variable([2.0 * rank], use_resource=True)
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(2))
        assert session.run([x, y]) == [[3.0], [4.0]]
        assert session.run(hvd.broadcast_variables([], 0)) is None
        with pytest.raises(tf.errors.FailedPreconditionError, match="MismatchError"):
            session.run(hvd.broadcast_variables([x, y] if rank == 0 else [x], 0))
        assert session.run(x) == [3.0]
        hook = hvd.BroadcastGlobalVariablesHook(0, device="/CPU:0")
        hook.begin()
        first = hook.bcast_op
        hook.begin()
        assert hook.bcast_op is first

    slices = tf.IndexedSlices(tf.ones([1, 2]), [0], [4, 2])
    lazy = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="IndexedSlices are not supported when `backward_passes_per_step`"):
        lazy._aggregation.add([slices], [tf.Variable(tf.zeros([4, 2]))])


def legacy_passes_are_steps(rank: int) -> None:
    """A script that ends by its global step makes as many passes as with Horovod, which counts every one of them."""
    assert passes_until_step(8, rank, True) == 8
    v1.disable_control_flow_v2()  # as tf.compat.v1.disable_v2_behavior() does; tf.cond of 2 takes no ref variables
    try:
        assert passes_until_step(8, rank, False) == 8
    finally:
        v1.enable_control_flow_v2()
    x, step = tf.Variable(1.0), tf.Variable(0, dtype=tf.int64)
    eager = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=3)
    for count in range(1, 5):
        eager.minimize(lambda: x * (rank + 1.0), var_list=[x], global_step=step)
        assert int(step) == count
        near(x, 1.0 - 6 * (count // 3))

    @tf.function
    def compiled() -> None:
        eager.minimize(lambda: x * (rank + 1.0), var_list=[x], global_step=step)

    for count in range(5, 8):
        compiled()
        assert int(step) == count
        near(x, 1.0 - 6 * (count // 3))


def legacy_passes_apart(rank: int) -> None:
    """The reduction ends a step's passes, not the call that applies it: that may come twice, or not at all."""

    def made() -> Any:
        return hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)

    x, y, optimizer = tf.Variable(0.0), tf.Variable(0.0), made()
    for count in range(1, 5):
        pairs = optimizer.compute_gradients(lambda: x + y, var_list=[x, y])
        optimizer.apply_gradients(pairs[:1])
        optimizer.apply_gradients(pairs[1:])
        assert [float(x), float(y)] == [-2.0 * (count // 2)] * 2

    x, optimizer, seen = tf.Variable(0.0), made(), []
    for count in range(6):
        pairs = optimizer.compute_gradients(lambda: x * 1.0, var_list=[x])
        if count != 1:  # a step that the script leaves out
            optimizer.apply_gradients(pairs)
        seen.append(float(x))
    assert seen == [0.0, 0.0, 0.0, -2.0, -2.0, -4.0]

    def step_of_a_tape() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = x * (rank + 1.0)
        optimizer.apply_gradients([(tape.gradient(loss, x), x)])

    x, optimizer = tf.Variable(0.0), made()
    for count in range(1, 4):  # before the first pass, and after the last
        step_of_a_tape()
        near(x, -2.0 * count)
    optimizer.minimize(lambda: x * 1.0, var_list=[x])
    optimizer.minimize(lambda: x * 1.0, var_list=[x])
    near(x, -8.0)
    step_of_a_tape()
    near(x, -10.0)

    with tf.Graph().as_default():
        x, y = (v1.get_variable(name, initializer=0.0, use_resource=True) for name in "xy")
        optimizer = made()
        pairs = optimizer.compute_gradients(x + y)
        first = optimizer.apply_gradients(pairs[:1])
        with tf.control_dependencies([first]):
            train = optimizer.apply_gradients(pairs[1:])
        with v1.train.MonitoredTrainingSession(config=ONE_THREAD) as session:
            for count in range(1, 5):
                session.run(train)
                assert session.run([x, y]) == [-2.0 * (count // 2)] * 2


def passes_until_step(last: int, rank: int, resource: bool) -> int:
    """How many passes a session makes until its global step is this one; four of them are one update."""
    with tf.Graph().as_default():
        x = v1.Variable(np.zeros(2), use_resource=resource, dtype=tf.float64)
        kinds = [v1.GraphKeys.GLOBAL_STEP, v1.GraphKeys.GLOBAL_VARIABLES]
        step = v1.Variable(0, use_resource=resource, dtype=tf.int64, trainable=False, collections=kinds)
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=4)
        train = optimizer.minimize(tf.reduce_sum(x) * (rank + 1.0), global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last)]
        passes = 0
        with v1.train.MonitoredTrainingSession(hooks=hooks, config=ONE_THREAD) as session:
            while not session.should_stop() and passes < 5 * last:
                near(session.run(x), np.full(2, -8.0 * (passes // 4)))
                session.run(train)
                passes += 1
    return passes


def keras_optimizers(rank: int) -> None:
    """They go to ringreduce.tensorflow.keras, with every option that Horovod loses on the way."""
    for options, scale in (
        ({}, 2.0),
        ({"op": hvd.Sum, "compression": hvd.Compression.fp16, "groups": 2}, 6.0),
        ({"gradient_predivide_factor": 2.0, "name": "mine"}, 2.0),
    ):
        x, y = tf.Variable(BASE), tf.Variable(1.0)
        optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5), **options)
        assert isinstance(optimizer, tf.keras.optimizers.SGD)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x * (rank + 1.0)) + tf.cast(y * (rank + 1.0), tf.float64)
        gradients = tape.gradient(loss, [x, y])  # this rank's; the optimizer reduces them
        optimizer.apply_gradients(zip(gradients, [x, y], strict=True))
        near(x, BASE - 0.5 * scale)
        near(y, 1 - 0.5 * scale)


def tapes_before_keras_optimizers(rank: int) -> None:
    """What a tape has reduced is not reduced again: an error where the step would be another, else a warning."""
    pair = hvd.add_process_set([1, 2])

    def step(tape_options: Any, options: Any, own: str = "") -> list[float]:
        x, y = tf.Variable(1.0), tf.Variable(1.0)
        optimizer: Any = tf.keras.optimizers.SGD(1.0)
        if options is not None:
            optimizer = hvd.DistributedOptimizer(optimizer, **options)
        with hvd.DistributedGradientTape(tf.GradientTape(), **tape_options) as tape:
            loss = x * (rank + 1.0) + y * (rank + 1.0)
        if "tape" in own:
            tape.register_local_source(y)
        if "optimizer" in own:
            optimizer.register_local_var(y)
        gradients = tape.gradient(loss, [x, y])
        optimizer.apply_gradients(zip(gradients, [x, y], strict=True))
        return [float(x), float(y)]

    text = "reduced by a DistributedGradientTape already; give them to the plain optimizer"
    both, unscaled = {"op": hvd.Sum}, {"scale_local_gradients": False}
    for tape_options, options, own in ((both, both, ""), ({}, both, ""), ({}, {}, "tape, optimizer")):
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            step(tape_options, options, own)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert step(both, {}) == [-5.0, -5.0]  # the mean over the ranks of what is the same on all
        near(step({**both, **unscaled}, {}, "tape, optimizer"), [-5.0, 1 - (rank + 1) / 3], 1e-6)
    files = [one.filename for one in caught if text in str(one.message)]
    assert files == [__file__] * (2 if rank == 0 else 0)

    x = tf.Variable(1.0)
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), **both)
    optimizer.build([x])

    @tf.function(autograph=False)
    def compiled() -> None:
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = x * (rank + 1.0)
        optimizer.apply_gradients([(tape.gradient(loss, x), x)])

    with pytest.raises(hvd.InvalidArgumentError, match=text):
        compiled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert step(both, None) == [-5.0, -5.0]
        assert step({"process_set": pair}, {}) == [-1.0, -1.0]  # over some of the ranks, and then over all
    hvd.remove_process_set(pair)


CHECKS = [
    adasum,
    legacy_eager,
    legacy_loss_scales,
    legacy_checkpoints,
    legacy_graph,
    legacy_passes_are_steps,
    legacy_passes_apart,
    keras_optimizers,
    tapes_before_keras_optimizers,
]
