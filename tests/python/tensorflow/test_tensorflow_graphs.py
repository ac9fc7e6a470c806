"""Many collectives in one graph, which each rank runs in an order of its own, on one thread: none waits for another."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow_ranks
from ranks import run_ranks
from tensorflow_ranks import ENV, both, close

pytestmark = pytest.mark.skipif(not tensorflow_ranks.INSTALLED, reason="TensorFlow is not installed")
COUNT = 12


def test_a_function_orders_its_collectives_before_any_eager_one() -> None:
    assert run_ranks(functions, 2, env=ENV | {"RINGREDUCE_TIMEOUT": "20"}) == ["done"] * 2


def functions() -> str:
    tf = tensorflow_ranks.start(inter=1)
    import ringreduce.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()

    @tf.function
    def independent(x: Any) -> Any:
        return every_kind(tf, hvd, lambda number: late(tf, x, rank, number))

    check_every_kind(independent(tf.constant([rank + 1.0])))

    @tf.function
    def loop_and_branch(x: Any) -> Any:
        total = tf.zeros([1])
        for i in tf.range(4):
            if i % 2 == 0:
                total += hvd.allreduce(late(tf, x, rank, 0) + tf.cast(i, tf.float32), op=hvd.Sum)
            else:
                total += hvd.allgather(late(tf, x, rank, 1) * tf.cast(i, tf.float32))[0]
            total += tf.reduce_sum(hvd.allgather(x))
        return total

    close(loop_and_branch(tf.constant([rank + 1.0])), [(3 + 0) + (3 + 4) + (1 + 3) + 4 * 3.0])
    wrapped = tf.compat.v1.wrap_function(independent.python_function, [tf.TensorSpec([1])])
    check_every_kind(wrapped(tf.constant([rank + 1.0])))
    traced_again_on_one_rank(tf, hvd, rank)
    gradient_of_a_loop(tf, hvd, rank)
    return "done"


def traced_again_on_one_rank(tf: Any, hvd: Any, rank: int) -> None:
    """For a shorter batch. The function within is not traced again, nor is its gradient."""

    @tf.function
    def within(x: Any) -> Any:
        return hvd.allreduce(x * x, op=hvd.Sum)

    @tf.function
    def outer(batch: Any) -> Any:
        x = tf.reduce_sum(batch, axis=0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = within(x)
        return y, tape.gradient(y, x), hvd.allreduce(tf.reduce_sum(batch), op=hvd.Sum)

    for rows in ((3, 3), (3, 2), (4, 2)):
        y, gradient, total = outer(tf.ones([rows[rank], 1]))
        close(y, [float(rows[0] ** 2 + rows[1] ** 2)])
        close(gradient, [4.0 * rows[rank]])
        close(total, float(sum(rows)))


def gradient_of_a_loop(tf: Any, hvd: Any, rank: int) -> None:
    """And of a branch in it."""

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for i in tf.range(3):
                if i < 2:
                    y = hvd.allreduce(y, op=hvd.Sum)
                y = tf.reduce_sum(hvd.allgather(y), keepdims=True)
            loss = y * (rank + 1.0)
        return tape.gradient(loss, x)

    # Of the all-gather the mean over the ranks comes back, 1.5 first, and of the all-reduce the sum.
    (got,) = both(gradient, tf.constant([rank + 1.0]))
    close(got, [6.0])


def late(tf: Any, x: Any, rank: int, number: int) -> Any:
    """x, by a long way on one of the ranks: with one thread an operation whose input has a short way runs first."""
    with tf.name_scope("late"):  # the nodes that one rank alone has count in no other node's name
        for _ in range(40 if number % 2 == rank else 0):
            x = tf.identity(x)
    return tf.identity(x, name="arrived")


def every_kind(tf: Any, hvd: Any, x_of: Callable[[int], Any]) -> list[Any]:
    """Independent collectives."""
    made: list[Any] = []
    for number in range(0, COUNT, 4):
        made += [
            hvd.allreduce(x_of(number), op=hvd.Sum),
            hvd.allgather(x_of(number + 1)),
            hvd.broadcast(x_of(number), root_rank=1),
            hvd.allreduce(x_of(number + 1), op=hvd.Max),
        ]
    return made


def check_every_kind(results: list[Any]) -> None:
    for number in range(0, COUNT, 4):
        close(results[number], [3.0])
        close(results[number + 1], [1.0, 2.0])
        close(results[number + 2], [2.0])
        close(results[number + 3], [2.0])


def test_a_session_runs_collectives_in_any_order_and_only_those_it_fetches() -> None:
    assert run_ranks(sessions, 2, env=ENV | {"RINGREDUCE_TIMEOUT": "20"}) == ["done"] * 2


def test_first_collectives_in_opposite_orders_a_second_apart() -> None:
    """Every rank waits for what another one calls later, and each has one thread that has called: no deadlock.

    With more ranks than cores, where init() calls nothing to measure the machine.
    """
    size = len(os.sched_getaffinity(0)) + 1
    assert run_ranks(opposite_orders, size, env=ENV | {"RINGREDUCE_TIMEOUT": "60"}) == ["done"] * size


def opposite_orders() -> str:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    for check in (in_a_session, on_threads_of_python):
        hvd.init()
        check(tf, hvd, ("x", "y") if hvd.rank() == 0 else ("y", "x"))
        hvd.shutdown()
    return "done"


def test_a_monitored_session_ends_where_a_rank_has_ended() -> None:
    first, second = run_ranks(monitored_to_the_end, 2, env=ENV | {"RINGREDUCE_TIMEOUT": "20"})
    assert first == "done"
    assert "ShutdownError" in second


def monitored_to_the_end() -> str:
    """Rank 1 goes on when rank 0 has ended well, so that nobody kills it."""
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    hvd.init()
    with tf.Graph().as_default():
        x = tf.compat.v1.get_variable("x", initializer=[1.0, 2.0], use_resource=True)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
        step = tf.compat.v1.train.get_or_create_global_step()
        train = optimizer.minimize(tf.reduce_sum(x * x), global_step=step)
        hooks = [hvd.BroadcastGlobalVariablesHook(0)]
        try:
            with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
                for _ in range(3 + 3 * hvd.rank()):
                    session.run(train)
        except tf.errors.OpError as error:
            return str(error)
    return "done"


def in_a_session(tf: Any, hvd: Any, names: tuple[str, str]) -> None:
    with tf.Graph().as_default():
        late = tf.numpy_function(lambda value: (time.sleep(1), value)[1], [np.float32(1)], tf.float32)
        inputs = [tf.constant([1.0]), tf.reshape(late, [1])]
        results = [hvd.allreduce(x, op=hvd.Sum, name=name) for name, x in zip(names, inputs, strict=True)]
        with tf.compat.v1.Session() as running:
            for result in running.run(results):
                close(result, [float(hvd.size())])


def on_threads_of_python(tf: Any, hvd: Any, names: tuple[str, str]) -> None:
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(hvd.allreduce, tf.constant([1.0]), op=hvd.Sum, name=names[0])
        time.sleep(1)
        second = threads.submit(hvd.allreduce, tf.constant([1.0]), op=hvd.Sum, name=names[1])
        for result in (first, second):
            close(result.result(), [float(hvd.size())])


def sessions() -> str:
    tf = tensorflow_ranks.start(inter=1)
    import ringreduce.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    checks = (
        independent,
        only_what_is_fetched,
        loops,
        branches,
        gradients,
        custom_gradients,
        imported,
        beside,
        monitored,
    )
    for check in checks:
        print(check.__name__, flush=True)
        for control_flow in (tf.compat.v1.disable_control_flow_v2, tf.compat.v1.enable_control_flow_v2):
            control_flow()
            with tf.Graph().as_default():
                check(tf, hvd, rank)
    return "done"


def session(tf: Any) -> Any:
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=1, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    return tf.compat.v1.Session(config=config)


def independent(tf: Any, hvd: Any, rank: int) -> None:
    x = tf.compat.v1.placeholder(tf.float32, [1])
    results = every_kind(tf, hvd, lambda number: late(tf, x, rank, number))
    with session(tf) as running:
        for _ in range(3):
            check_every_kind(running.run(results, {x: [rank + 1.0]}))


def only_what_is_fetched(tf: Any, hvd: Any, rank: int) -> None:
    """An operation that nobody fetches neither waits for other ranks nor needs its inputs."""
    absent = tf.compat.v1.placeholder(tf.float32, [1])
    first = hvd.allreduce(absent + 1, op=hvd.Sum)
    second = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum)
    third = hvd.allgather(tf.constant([float(rank)]))
    with session(tf) as running:
        close(running.run(third), [0.0, 1.0])
        close(running.run(second), [3.0])
        close(running.run(first, {absent: [float(rank)]}), [3.0])


def loops(tf: Any, hvd: Any, rank: int) -> None:
    """Iterations run at once, and each rank begins with another one; loops in loops too."""

    def outer(i: Any, total: Any) -> Any:
        def inner(j: Any, subtotal: Any) -> Any:
            x = tf.numpy_function(slowly(rank), [10 * i + j], tf.float32)
            return j + 1, subtotal + tf.cast(j + 1, tf.float32) * hvd.allreduce(tf.reshape(x, [1]), op=hvd.Sum)

        return i + 1, total + tf.while_loop(lambda j, _: j < 3, inner, [0, tf.zeros([1])])[1]

    result = tf.while_loop(lambda i, _: i < 4, outer, [0, tf.zeros([1])])[1]
    expected = sum((j + 1) * (2 * (10 * i + j) + 1) for i in range(4) for j in range(3))
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=3, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    with tf.compat.v1.Session(config=config) as running:
        for _ in range(3):
            close(running.run(result), [float(expected)])


def slowly(rank: int) -> Callable[[Any], Any]:
    def value(number: Any) -> Any:
        if number % 2 == rank:
            np.linalg.svd(np.random.default_rng(int(number)).normal(size=(60, 60)))
        return np.float32(number + rank)

    return value


def branches(tf: Any, hvd: Any, rank: int) -> None:
    which = tf.compat.v1.placeholder(tf.bool, [])
    x = tf.constant([rank + 1.0])
    before = hvd.allreduce(late(tf, x, rank, 0), op=hvd.Sum)
    chosen = tf.cond(
        which,
        lambda: hvd.allreduce(late(tf, x, rank, 1), op=hvd.Sum) + hvd.allreduce(late(tf, x, rank, 0), op=hvd.Max),
        lambda: hvd.allgather(x)[1:],
    )
    after = hvd.broadcast(late(tf, x, rank, 0), 1)
    with session(tf) as running:
        for value, expected in ((True, [5.0]), (False, [2.0])):
            results = running.run([before, chosen, after], {which: value})
            for result, wanted in zip(results, ([3.0], expected, [2.0]), strict=True):
                close(result, wanted)


def gradients(tf: Any, hvd: Any, rank: int) -> None:
    variables = [tf.compat.v1.get_variable(f"v{i}", initializer=[float(i + 1)]) for i in range(4)]
    sums = [hvd.allreduce(late(tf, v, rank, i) * (rank + 1), op=hvd.Sum) for i, v in enumerate(variables)]
    grads = tf.gradients([sums[3], sums[1], sums[0], sums[2]], variables)
    with session(tf) as running:
        running.run(tf.compat.v1.global_variables_initializer())
        for i, (value, grad) in enumerate(zip(*running.run([sums, grads]), strict=True)):
            close(value, [(i + 1) * 3.0])
            close(grad, [(rank + 1) * 2.0])


def custom_gradients(tf: Any, hvd: Any, rank: int) -> None:
    """SyncBatchNormalization makes its collectives within one."""

    @tf.custom_gradient
    def scaled(x: Any) -> Any:
        y = hvd.allreduce(x * (rank + 1), op=hvd.Sum)
        return y, lambda grad: hvd.allreduce(grad * (rank + 1), op=hvd.Sum) * 10

    x = tf.constant([2.0])
    y = scaled(x)
    with session(tf) as running:
        value, (grad,) = running.run([y, tf.gradients(y, [x])])
        close(value, [6.0])
        close(grad, [30.0])


def imported(tf: Any, hvd: Any, rank: int) -> None:
    x = tf.compat.v1.placeholder(tf.float32, [1], name="x")
    for number, result in enumerate(every_kind(tf, hvd, lambda at: late(tf, x, rank, at))):
        tf.identity(result, name=f"result{number}")
    meta = tf.compat.v1.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(meta)
        with session(tf) as running:
            names = [f"result{number}:0" for number in range(COUNT)]
            check_every_kind(running.run(names, {"x:0": [rank + 1.0]}))


def beside(tf: Any, hvd: Any, rank: int) -> None:
    """Operations of an imported graph, of the graph that has it, and of one that runs at the same time: other names."""

    def added() -> list[Any]:
        x = tf.compat.v1.get_default_graph().get_tensor_by_name("x:0")
        which = tf.constant(True)
        return [hvd.allreduce(x), tf.cond(which, lambda: hvd.allreduce(x * 2), lambda: x), hvd.allreduce(x * 3)]

    tf.compat.v1.placeholder(tf.float32, [1], name="x")
    for number, result in enumerate(added()):
        tf.identity(result, name=f"result{number}")
    meta = tf.compat.v1.train.export_meta_graph()
    graph, other = tf.Graph(), tf.Graph()
    with graph.as_default():
        before = hvd.allgather(tf.compat.v1.placeholder(tf.float32, [1], name="y"))
        tf.compat.v1.train.import_meta_graph(meta)
        results = ["result0:0", "result1:0", "result2:0", *added(), before]
    with other.as_default():
        accuracy = hvd.allreduce(tf.compat.v1.placeholder(tf.float32, [1], name="accuracy"))
    names = names_of(graph) + names_of(other)
    assert len(set(names)) == len(names) == 8

    def run(graph: Any, fetched: list[Any], values: dict[str, Any]) -> Any:
        with tf.compat.v1.Session(graph=graph) as running:
            return running.run(fetched, values)

    calls = [(graph, results, {"x:0": [rank + 1.0], "y:0": [2.0]}), (other, [accuracy], {"accuracy:0": [rank + 9.0]})]
    with ThreadPoolExecutor(2) as threads:
        runs = {at: threads.submit(run, *calls[at]) for at in ((0, 1) if rank == 0 else (1, 0))}
        both = [runs[at].result() for at in (0, 1)]
    for value, wanted in zip(both[0] + both[1], [[1.5], [3.0], [4.5]] * 2 + [[2.0, 2.0], [9.5]], strict=True):
        close(value, wanted)


def names_of(graph: Any) -> list[str]:
    """Names of the ranks' operations in a graph, also of those in branches."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return [node.attr["tensor_name"].s.decode() for node in nodes if "tensor_name" in node.attr]


def monitored(tf: Any, hvd: Any, rank: int) -> None:
    """A training step, metrics that are not in it, and a hook that broadcasts."""
    weights = tf.compat.v1.get_variable("weights", initializer=np.full(2, rank + 1.0))
    x = tf.compat.v1.placeholder(tf.float64, [None, 2])
    loss = tf.reduce_mean((late(tf, x, rank, 0) @ weights[:, None]) ** 2)
    step = tf.compat.v1.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
    train = optimizer.minimize(loss, global_step=step)
    metrics = [hvd.allreduce(late(tf, loss, rank, i) + i) for i in range(3)]
    hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.compat.v1.train.StopAtStepHook(last_step=3)]
    mine = [[rank + 1.0, 2.0], [1.0, -1.0]]
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1, use_per_session_threads=True)
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks, config=config) as running:
        while not running.should_stop():
            _, means, own = running.run([train, metrics, weights], {x: mine})
            close(np.diff(means), [1.0, 1.0])
    every = hvd.allgather_object(own.tolist())
    assert every[0] == every[1]
