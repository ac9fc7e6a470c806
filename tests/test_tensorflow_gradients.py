"""Tapes and optimizers of ringreduce.tensorflow, eagerly, in tf.function and in graphs of TensorFlow 1."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

import ringreduce.tensorflow as hvd  # noqa: E402

ENV = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    "CUDA_VISIBLE_DEVICES": "-1",
    "KERAS_BACKEND": "tensorflow",
    "RINGREDUCE_TIMEOUT": "60",
}
v1 = tf.compat.v1
# The dense and the sparse gradients are two operations: with one thread they must not run in different orders.
ONE_THREAD = v1.ConfigProto(
    inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
)
BASE = np.arange(1.0, 7.0).reshape(2, 3)


def ranks_mean(of: Callable[[int], Any], ranks: Any = range(3)) -> Any:
    return sum(of(rank) for rank in ranks) / len(ranks)


def near(ours: Any, expected: Any, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=rtol, atol=rtol)


# --- tapes ------------------------------------------------------------------------------------------------------------


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
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared * own) * (rank + 1.0) + tf.reduce_sum(tf.gather(embedding, [1])) * rank
        tape = hvd.DistributedGradientTape(tape, **options)
        tape.register_local_source(own)
        tape.register_local_source(embedding)
        grads = tape.gradient(loss, [own, shared, embedding])
        local, common = tape.get_local_and_global_gradients(grads, [own, shared, embedding])
        assert [source is own or source is embedding for _, source in local] == [True, True]
        assert [source is shared for _, source in common] == [True]
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


def compression_rounds(rank: int) -> None:
    fine = tf.constant([1 + 2.0**-9, 3.0], tf.float64)  # the first is no bfloat16, and both are float16
    near(hvd.allreduce(fine, compression=hvd.Compression.fp16, op=hvd.Sum), [3 + 3 * 2.0**-9, 9.0], 1e-3)
    coarse = hvd.allreduce(fine, compression=hvd.Compression.bf16, op=hvd.Sum)
    assert coarse.dtype == tf.float64
    assert coarse.numpy().tolist() == [3.0, 9.0]
    whole = hvd.allreduce(tf.constant([257, rank]), compression=hvd.Compression.bf16, op=hvd.Sum)
    assert whole.numpy().tolist() == [771, 3]
    slices = hvd.allreduce(tf.IndexedSlices(fine[tf.newaxis], [rank], [3, 2]), compression=hvd.Compression.bf16)
    near(tf.convert_to_tensor(slices), np.full((3, 2), [1 / 3, 1.0]))


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


# --- Horovod's arguments of the collectives ---------------------------------------------------------------------------


def arguments(rank: int) -> None:
    x = tf.constant([1.0, 2.0]) * (rank + 1)
    with pytest.warns(DeprecationWarning, match="average"):
        near(hvd.allreduce(x, average=False), [6.0, 12.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near(hvd.allreduce(x, True), [2.0, 4.0])
        near(hvd.grouped_allreduce([x, x], False)[1], [6.0, 12.0])
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(x, average=True, op=hvd.Sum)
    near(hvd.allreduce(x), [2.0, 4.0])
    near(hvd.allreduce(np.float64(rank), op=hvd.Max), 2.0)
    near(hvd.allreduce(tf.Variable(x), device_dense="/CPU:0", op=hvd.Product, name="product"), [6.0, 48.0])
    near(hvd.allreduce(tf.keras.Variable(x), op=hvd.Min, ignore_name_scope=True), [1.0, 2.0])
    near(hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.5), [6.0, 12.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16) * (rank + 1.0))
    near(tape.gradient(y, x), [6.0, 6.0])

    slices = tf.IndexedSlices(x[tf.newaxis], [rank], [3, 2])
    mixed = hvd.grouped_allreduce([x, slices, tf.constant(rank, tf.int64), slices], op=hvd.Sum)
    near(mixed[0], [6.0, 12.0])
    assert mixed[2].numpy() == 3
    for one in (mixed[1], mixed[3]):
        near(tf.convert_to_tensor(one), np.outer([1, 2, 3], [1.0, 2.0]))
    assert hvd.grouped_allreduce([]) == []
    whole = hvd.allreduce(tf.IndexedSlices(tf.constant([[-5]]), [0], [1, 1]))
    assert tf.convert_to_tensor(whole).numpy().tolist() == [[-3]]  # three rows of -5 / 3, each toward zero
    for call in (hvd.allreduce, lambda one, **more: hvd.grouped_allreduce([one], **more)):
        with pytest.raises(NotImplementedError, match="Only Sum and Average"):
            call(slices, op=hvd.Min)
        with pytest.raises(NotImplementedError, match="Pre/postscale_factor are not supported"):
            call(slices, prescale_factor=2.0)

    rows = tf.constant(np.arange(8.0).reshape(4, 2)) * (rank + 1)
    mine = slice(0, 2) if rank == 0 else slice(rank + 1, rank + 2)  # four rows among three ranks
    near(hvd.reducescatter(rows), 2 * np.arange(8.0).reshape(4, 2)[mine])
    near(hvd.reducescatter(rows, op=hvd.Sum, compression=hvd.Compression.fp16), 6 * np.arange(8.0).reshape(4, 2)[mine])
    one, other = hvd.grouped_reducescatter([rows, tf.cast(rows, tf.float32)], op=hvd.Sum)
    assert (one.dtype, other.dtype) == (tf.float64, tf.float32)
    near(other, 6 * np.arange(8.0).reshape(4, 2)[mine])
    assert hvd.grouped_reducescatter([]) == []


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


# --- optimizers of TensorFlow 1 ---------------------------------------------------------------------------------------


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

    for wrong, text in (
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"groups": "all"}, "groups should be"),
        ({"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "gradient_predivide_factor not supported"),
        ({"op": hvd.Adasum, "average_aggregated_gradients": True}, "Adasum does not support"),
    ):
        with pytest.raises(ValueError, match=text):
            hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), **wrong)
    with pytest.raises(ValueError, match="op == Adasum is not supported yet with Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Adasum)
    with pytest.raises(hvd.UnavailableError, match="op=Adasum takes no groups"):
        hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, groups=2)
    with pytest.raises(ValueError, match="wrapped already"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(ValueError, match="doesn't inherit from either legacy TensorFlow or Keras optimizer"):
        hvd.DistributedOptimizer(object())


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
                    assert session.run(step) == count // passes

    with tf.Graph().as_default(), v1.Session() as session:
        x, y = v1.Variable([1.0 + rank]), v1.Variable([2.0 * rank], use_resource=True)
        session.run(v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(2))
        assert session.run([x, y]) == [[3.0], [4.0]]
        assert session.run(hvd.broadcast_variables([], 0)) is None
        hook = hvd.BroadcastGlobalVariablesHook(0, device="/CPU:0")
        hook.begin()
        first = hook.bcast_op
        hook.begin()
        assert hook.bcast_op is first

    slices = tf.IndexedSlices(tf.ones([1, 2]), [0], [4, 2])
    lazy = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
    with pytest.raises(ValueError, match="IndexedSlices are not supported when `backward_passes_per_step`"):
        lazy._aggregation.add([slices], [tf.Variable(tf.zeros([4, 2]))])


# --- variables of tf.distribute ---------------------------------------------------------------------------------------


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
    compression_rounds,
    process_sets,
    mismatches,
    arguments,
    adasum,
    legacy_eager,
    legacy_graph,
    keras_optimizers,
    strategies,
]


def run_checks() -> list[str]:
    with hvd.init() as world:
        for check in CHECKS:
            print(check.__name__, flush=True)
            check(world.rank)
    return [check.__name__ for check in CHECKS]


@pytest.mark.timeout(300)
def test_gradients_on_three_ranks(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(run_checks, 3, env=ENV, timeout_s=240) == [[check.__name__ for check in CHECKS]] * 3
