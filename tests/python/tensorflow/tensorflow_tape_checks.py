"""Gradient tapes of three ranks, eagerly and in tf.function: what they reduce, how, and in which operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_checks import BASE, near, ranks_mean

import ringreduce.tensorflow as hvd


def dense_gradients(rank: int) -> None:
    """Of several dtypes, in any structure, with None among them; eager and in a graph, as one operation."""
    wide, narrow = tf.Variable(BASE), tf.Variable(BASE.astype(np.float32))
    unused = tf.Variable(1.0)

    def loss_of() -> Any:
        return tf.reduce_sum(wide**2 * (rank + 1.0)) + tf.cast(tf.reduce_sum(narrow**3), tf.float64) * (10.0**rank)

    def eager() -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of()
        tape = hvd.DistributedGradientTape(tape)
        assert isinstance(tape, tf.GradientTape)
        return tape.gradient(loss, {"b": [unused, narrow], "a": wide})

    for call in (eager, tf.function(eager)):
        for _ in range(2):
            before = hvd.stats()["operations"]
            got = call()
            assert hvd.stats()["operations"] - before == 1
            assert got["b"][0] is None
            assert got["b"][1].dtype == tf.float32
            near(got["a"], 2 * BASE * ranks_mean(lambda r: r + 1))
            near(got["b"][1], 3 * BASE**2 * ranks_mean(lambda r: 10.0**r), 1e-6)

    with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as tape:
        loss = loss_of()
    near(tape.gradient(loss, wide), 2 * BASE * 6)  # one source, no list
    with tf.GradientTape() as plain:
        tape = hvd.DistributedGradientTape(plain, op=hvd.Max)
        loss = loss_of()
    (got,) = tape.gradient(loss, [wide], output_gradients=tf.constant(2.0, tf.float64))
    near(got, 2 * BASE * 3 * 2)
    zero = tf.UnconnectedGradients.ZERO
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of()
    near(tape.gradient(loss, [unused], unconnected_gradients=zero)[0], 0.0)
    assert hvd.DistributedGradientTape(tf.GradientTape()).gradient is not None
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = loss_of()
    assert tape.gradient(loss, []) == []


def persistent_and_nested_tapes(rank: int) -> None:
    x = tf.Variable(BASE)
    with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        square, cube = tf.reduce_sum(x**2) * (rank + 1.0), tf.reduce_sum(x**3) * (rank + 2.0)
        with tape.stop_recording():
            hidden = tf.reduce_sum(x)
        assert [one.ref() for one in tape.watched_variables()] == [x.ref()]
    near(tape.gradient(square, x), 2 * BASE * 2)
    near(tape.gradient(cube, x), 3 * BASE**2 * 3)
    assert tape.gradient(hidden, x) is None
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        forgotten = tf.reduce_sum(x)
        tape.reset()
        y = tf.reduce_sum(x) * (rank + 1.0)
    assert tf.is_tensor(forgotten)
    near(tape.gradient(y, x), np.full((2, 3), 2.0))

    constant = tf.constant(BASE)
    with hvd.DistributedGradientTape(tf.GradientTape(watch_accessed_variables=False)) as tape:
        tape.watch(constant)
        y = constant**2 * (rank + 1.0)
    near(tape.jacobian(y, constant)[0, 1, 0, 1], 2 * BASE[0, 1] * (rank + 1))  # this rank's own

    class Tape(tf.GradientTape):
        def kind(self) -> str:
            return f"persistent: {self._persistent}"

    tape = hvd.DistributedGradientTape(Tape(persistent=True))
    assert isinstance(tape, Tape)
    assert tape.kind() == "persistent: True"
    with pytest.raises(ValueError, match="compression='fp16' is no compressor"):
        hvd.DistributedGradientTape(tf.GradientTape(), compression="fp16")
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedGradientTape(tape)
    with pytest.raises(ValueError, match=r"takes a tf\.GradientTape"):
        hvd.DistributedGradientTape(x)

    def second() -> Any:
        with tf.GradientTape() as outer:
            with hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Sum) as inner:
                y = tf.reduce_sum(x**3) * (rank + 1.0)
            total = inner.gradient(y, x)  # 3 x^2 (1 + 2 + 3)
        return outer.gradient(total, x, output_gradients=tf.ones_like(x) * (rank + 1.0))

    # The gradient of a sum over ranks is the sum of what the ranks ask for, here 1 + 2 + 3.
    for call in (second, tf.function(second)):
        near(call(), 6 * BASE * 6 * (rank + 1.0))


def sparse_gradients(rank: int) -> None:
    """A rank's rows differ in number and repeat; on rank 2 there are none."""
    table = tf.Variable(np.arange(10.0).reshape(5, 2))
    other = tf.Variable(BASE)
    rows = [[0, 1, 1], [4], []]

    def expected(r: int) -> Any:
        grad = np.zeros((5, 2))
        for row in rows[r]:
            grad[row] += 2 * np.arange(10.0).reshape(5, 2)[row] * (r + 1)
        return grad

    def gradients(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            picked = tf.gather(table, tf.constant(rows[rank], tf.int32))
            loss = tf.reduce_sum(picked**2) * (rank + 1.0) + tf.reduce_sum(other * (rank + 1.0))
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, [table, other])

    for options, scale in (
        ({}, 1 / 3),
        ({"op": hvd.Sum}, 1.0),
        ({"gradient_predivide_factor": 4.0}, 1 / 3),
        ({"groups": 2}, 1 / 3),
        ({"sparse_as_dense": True}, 1 / 3),
    ):
        for call in (gradients, tf.function(gradients)):
            sparse, dense = call(**options)
            assert isinstance(sparse, tf.IndexedSlices) is ("sparse_as_dense" not in options)
            near(tf.convert_to_tensor(sparse), sum(map(expected, range(3))) * scale)
            near(dense, np.full((2, 3), 6.0 * scale))
    sparse, _ = gradients()
    assert sparse.indices.numpy().tolist() == [0, 1, 1, 4]
    for op in (hvd.Max, hvd.Adasum):
        with pytest.raises(NotImplementedError, match=r"sparse|IndexedSlices"):
            gradients(op=op)


def local_sources(rank: int) -> None:
    """Their gradients stay this rank's, divided by the number of ranks."""
    shared, own, embedding = tf.Variable(BASE), tf.Variable(BASE), tf.Variable(BASE)

    def gradients(**options: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(shared * own) * (rank + 1.0) + tf.reduce_sum(tf.gather(embedding, [1])) * rank
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(own)
        tape.register_local_source(embedding)
        grads = tape.gradient(loss, [own, shared, embedding])
        local, common = tape.get_local_and_global_gradients(loss, [own, shared, embedding])
        assert [source is expected for (source, _), expected in zip(local, (own, embedding), strict=True)] == [True] * 2
        assert [source is shared for source, _ in common] == [True]
        for again, first in zip([local[0][1], common[0][1]], grads[:2], strict=True):
            near(again, first)
        return grads

    for scale, options in ((3, {}), (1, {"scale_local_gradients": False})):
        mine, everybodys, sparse = gradients(**options)
        near(mine, BASE * (rank + 1) / scale)
        near(everybodys, BASE * 2)
        near(tf.convert_to_tensor(sparse)[1], np.full(3, rank / scale))

    keras = tf.keras
    layers = [keras.layers.Dense(2, dtype="float64") for _ in range(2)]
    for layer in layers:
        layer.build((None, 3))
        layer.kernel.assign(np.ones((3, 2)))
    for local_layers in (layers[0], [layers[0]], layers[:1]):
        with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=local_layers) as tape:
            loss = sum(tf.reduce_sum(layer(BASE)) for layer in layers) * (rank + 1.0)
        ours, theirs = tape.gradient(loss, [layer.kernel for layer in layers])
        near(ours, np.outer(BASE.sum(0), [1, 1]) * (rank + 1) / 3)
        near(theirs, np.outer(BASE.sum(0), [1, 1]) * 2)
    for first_call in ("gradient", "get_local_and_global_gradients"):  # of layers that the first step builds
        ones = {"kernel_initializer": "ones", "dtype": "float64"}
        shared_layer, own_layer = keras.layers.Dense(1, **ones), keras.layers.Dense(1, **ones)
        for step in range(2):
            with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=own_layer) as tape:
                loss = tf.reduce_sum(shared_layer(BASE) + own_layer(BASE)) * (rank + 1.0)
            kernels = [shared_layer.kernel, own_layer.kernel]
            if first_call == "gradient" or step:
                theirs, ours = tape.gradient(loss, kernels)
            else:
                [(_, ours)], [(_, theirs)] = tape.get_local_and_global_gradients(loss, kernels)
            near(ours, BASE.sum(0)[:, None] * (rank + 1) / 3)
            near(theirs, BASE.sum(0)[:, None] * 2)
    watched = tf.constant(BASE)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        tape.watch(watched)
        tape.register_local_source(watched)
        tape.register_local_source(layers[1].kernel)  # of Keras
        loss = tf.reduce_sum(layers[1](watched)) * (rank + 1.0)
    of_watched, of_kernel = tape.gradient(loss, [watched, layers[1].kernel])
    near(of_watched, np.full((2, 3), 2 * (rank + 1) / 3))
    near(of_kernel, np.outer(BASE.sum(0), [1, 1]) * (rank + 1) / 3)
    legacy = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    legacy.register_local_var(layers[1].kernel)
    for wrong in (layers[0], BASE, [shared], "kernel"):
        for register in (tape.register_local_source, legacy.register_local_var):
            with pytest.raises(hvd.InvalidArgumentError, match=r"takes a variable, such as .*, not a"):
                register(wrong)
    with pytest.raises(hvd.InvalidArgumentError, match="takes a variable"):
        legacy.register_local_var(watched)
    with pytest.raises(ValueError, match="All local layers must be of"):
        hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=[layers[0], 3])


def groups_and_factors(rank: int) -> None:
    variables = [tf.Variable(np.full(2, number + 1.0)) for number in range(5)]

    def gradients(**options: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(variable**2) for variable in variables) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)

    for options, operations in (
        ({"groups": 2}, 2),
        ({"groups": 9}, 5),
        ({"groups": 0}, 1),
        ({"groups": [variables[3:], [variables[0]]]}, 3),
        ({"gradient_predivide_factor": 8.0}, 1),
        ({"compression": hvd.Compression.fp16}, 1),
    ):
        before = hvd.stats()["operations"]
        got = gradients(**options)
        assert hvd.stats()["operations"] - before == operations, options
        for number, one in enumerate(got):
            near(one, np.full(2, 2 * (number + 1.0) * 2))
        for one, other in zip(tf.function(gradients)(**options), got, strict=True):
            near(one, other)
    with pytest.warns(DeprecationWarning, match="num_groups"):
        near(gradients(num_groups=2)[4], np.full(2, 20.0))
    for wrong in (-1, [variables[0]], 2.5):
        with pytest.raises(ValueError, match="groups should be a non-negative integer or a list of list"):
            gradients(groups=wrong)
    with pytest.raises(ValueError, match="only appear once in groups"):
        gradients(groups=[variables[:2], variables[1:3]])
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported with op != Average"):
        gradients(op=hvd.Sum, gradient_predivide_factor=2.0)

    generic = tf.Variable(1.0)
    with tf.name_scope(f"rank_{rank}"), tf.GradientTape() as tape:  # the graphs differ, the operations' names do not
        loss = generic * (rank + 1.0)
        near(hvd.DistributedGradientTape(tape).gradient(loss, [generic], use_generic_names=True)[0], 2.0)


def process_sets(rank: int) -> None:
    part = hvd.add_process_set([0, 2])
    x = tf.Variable(BASE)

    def gradient(op: int = hvd.Average) -> Any:
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(x**2) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape, op=op, process_set=part).gradient(y, x)

    for call in (gradient, tf.function(gradient)):
        near(call(), 2 * BASE * 2)
        near(call(hvd.Sum), 2 * BASE * (2 if rank == 1 else 4))
    if rank != 1:
        near(hvd.allreduce(x, op=hvd.Sum, process_set=part), 2 * BASE)
        slices = tf.IndexedSlices(tf.ones([1, 2]) * (rank + 1), [0], [1, 2])
        near(tf.convert_to_tensor(hvd.allreduce(slices, process_set=part)), [[2.0, 2.0]])
    with hvd.DistributedGradientTape(tf.GradientTape(), process_set=hvd.ProcessSet([0, 1])) as tape:
        y = tf.reduce_sum(x**2)
    with pytest.raises(ValueError, match="not been registered"):
        tape.gradient(y, x)
    with pytest.raises(ValueError, match="not been registered"):
        hvd.broadcast_variables([x], 0, process_set=hvd.ProcessSet([0, 1]))
    alone = [hvd.add_process_set([r]) for r in range(3)][rank]
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(x**2) * (rank + 1.0)
    near(hvd.DistributedGradientTape(tape, process_set=alone).gradient(y, x), 2 * BASE * (rank + 1))


def mismatches(rank: int) -> None:
    """A gradient that only one rank has is an error on all, eagerly and in a graph, and the next step is well."""
    x, y = tf.Variable(1.0), tf.Variable([2.0])

    def gradients(of_y: bool) -> Any:
        with tf.GradientTape() as tape:
            loss = x * (rank + 1.0)
            if of_y:
                loss += y[0]
        return hvd.DistributedGradientTape(tape).gradient(loss, [x, y])

    for call in (gradients, tf.function(gradients)):
        with pytest.raises(tf.errors.OpError, match=r"MismatchError: .*Mismatched"):
            call(rank == 1)
        near(call(True)[0], 2.0)
    with pytest.raises(hvd.MismatchError):
        gradients(rank == 1)

    heads = [tf.Variable([1.0, 1.0]) for _ in range(2)]  # of one shape, and each rank uses another one

    def of_one_head(number: int) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(heads[number]) * (rank + 1.0)
        return hvd.DistributedGradientTape(tape).gradient(loss, heads)

    for head_call in (of_one_head, tf.function(of_one_head)):
        with pytest.raises(tf.errors.OpError, match=r"MismatchError: .*Mismatched"):
            head_call(rank % 2)
        found = head_call(1)
        assert found[0] is None
        near(found[1], [2.0, 2.0])


def strategies(rank: int) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        mirrored = tf.Variable(1.0, name="mirrored")
        of_keras = tf.keras.Variable(np.ones(2, np.float32), name="of_keras")
    for variable in (mirrored, of_keras):
        for call in (
            lambda variable=variable: hvd.broadcast_variables([variable], 0),
            lambda variable=variable: hvd.allreduce(variable),
        ):
            with pytest.raises(hvd.UnavailableError, match=r"under a tf\.distribute strategy's scope.*leave the strat"):
                call()
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(variable * 2.0)
        with pytest.raises(hvd.UnavailableError, match=variable.name):
            hvd.DistributedGradientTape(tape).gradient(y, [variable])
    near(hvd.allreduce(tf.constant(1.0 + rank)), 2.0)


CHECKS = [
    dense_gradients,
    persistent_and_nested_tapes,
    sparse_gradients,
    local_sources,
    groups_and_factors,
    process_sets,
    mismatches,
    strategies,
]
