"""The operators on dense tensors: every one eagerly and in a graph, with inputs that differ per rank, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow_ranks
from ranks import run_ranks
from tensorflow_ranks import ENV, both, close

pytestmark = pytest.mark.skipif(not tensorflow_ranks.INSTALLED, reason="TensorFlow is not installed")

SIZE = 3
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def block(rank: int, shape: tuple[int, ...], scale: int = 1) -> Any:
    """Small whole numbers that depend on rank and position."""
    return (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 + 1 + rank) * scale


def blocks(shape: tuple[int, ...], scale: int = 1) -> Any:
    """block() of all ranks."""
    return np.stack([block(rank, shape, scale) for rank in range(SIZE)])


def test_collectives_and_gradients_eagerly_and_in_graphs() -> None:
    lasts = run_ranks(everything, SIZE, env=ENV)  # one launch: a rank takes 10 s to import TensorFlow
    assert lasts[0] in range(SIZE)
    assert len(set(lasts)) == 1


def everything() -> int:
    tf = tensorflow_ranks.start()
    import ringreduce
    import ringreduce.tensorflow.mpi_ops as hvd

    before = tf.function(lambda: (hvd.size_op(), hvd.rank_op())).get_concrete_function()  # no job yet
    hvd.init()
    rank = hvd.rank()
    assert [int(value) for value in before()] == [SIZE, rank]
    places = both(lambda: (hvd.rank_op(), hvd.local_rank_op(), hvd.size_op(), hvd.local_size_op()))
    assert [int(value) for value in places] == [rank, rank, SIZE, SIZE]

    reductions(tf, hvd, rank)
    movements(tf, hvd, rank)
    process_sets(tf, hvd, rank)
    hvd.barrier()
    tf.function(hvd.barrier)()
    names(tf, hvd, rank)
    gradients(tf, hvd, rank)
    if rank == 0:  # the others go on without it
        last = int(hvd.join())
    else:
        close(hvd._allreduce(tf.fill([3], float(rank)), op=hvd.Sum), [3.0] * 3)
        last = int(tf.function(hvd.join)())
    assert ringreduce.stats()["operations"] > 100
    # As an array it has no format in the buffer protocol, of which TensorFlow tells by a ValueError.
    half = ringreduce.allgather(tf.constant([rank + 0.5], tf.bfloat16))
    assert half.dtype.name == "bfloat16"
    assert half.tolist() == [0.5, 1.5, 2.5]
    return last


def reductions(tf: Any, hvd: Any, rank: int) -> None:
    shape = (7, 3)
    every = blocks(shape)
    mine = [tf.cast(tf.constant(block(rank, shape)), dtype) for dtype in FLOATS + INTEGERS]
    for op, expected in [
        (hvd.Sum, every.sum(0)),
        (hvd.Average, every.sum(0) / SIZE),
        (hvd.Min, every.min(0)),
        (hvd.Max, every.max(0)),
        (hvd.Product, every.prod(0)),
    ]:
        results = both(lambda *tensors, op=op: hvd._grouped_allreduce(tensors, op=op), *mine)
        for dtype, source, got in zip(FLOATS + INTEGERS, mine, results, strict=True):
            assert got.dtype == source.numpy().dtype
            wanted = expected if dtype in FLOATS else expected.astype(int).astype(dtype)
            tolerance = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)
            np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=tolerance, err_msg=f"{dtype} {op}")
    third = 1 / 3  # not a float32: factors of float64 tensors keep their bits
    factors = {"op": hvd.Sum, "prescale_factor": third, "postscale_factor": 0.1}
    (got,) = both(lambda x: hvd._allreduce(x, **factors), tf.constant(block(rank, shape), tf.float64))
    np.testing.assert_allclose(got, every.sum(0) * third * 0.1, rtol=1e-15)
    (got,) = both(lambda x: hvd._allreduce(x, op=7), tf.constant([rank == 1, False, True]))  # LogicalOr
    assert got.tolist() == [True, False, True]

    def grouped(x: Any, y: Any, z: Any, empty: Any) -> Any:
        again = x * 2  # the operator may work in the memory of one of these, and must not in that of the other
        kept = y + 1
        return *hvd._grouped_allreduce([again, kept, z, empty], op=hvd.Sum), kept

    results = both(
        grouped,
        tf.constant(block(rank, (1000, 5)), tf.float32),
        tf.constant(block(rank, (4,)), tf.int64),
        tf.constant(float(rank), tf.float64),
        tf.zeros([0, 3], tf.bfloat16),
    )
    close(results[0], blocks((1000, 5)).sum(0) * 2)
    close(results[1], (blocks((4,)) + 1).sum(0))
    close(results[2], 0.0 + 1.0 + 2.0)
    assert results[3].shape == (0, 3)
    close(results[4], block(rank, (4,)) + 1)

    tall = blocks((7, 2))  # 7 rows on 3 ranks: 3, 2, 2
    own = slice([0, 3, 5][rank], [3, 5, 7][rank])
    mine = [tf.constant(block(rank, (7, 2)), tf.float32), tf.constant(block(rank, (4,)), tf.int32)]
    (got,) = both(lambda x: hvd._reducescatter(x, op=hvd.Average), mine[0])
    close(got, tall.sum(0)[own] / SIZE)
    first, second = both(lambda x, y: hvd._grouped_reducescatter([x, y], op=hvd.Sum, prescale_factor=1.0), *mine)
    close(first, tall.sum(0)[own])
    close(second, blocks((4,)).sum(0)[slice([0, 2, 3][rank], [2, 3, 4][rank])])


def movements(tf: Any, hvd: Any, rank: int) -> None:
    def rows(r: int, dtype: str = "float32") -> Any:
        return block(r, (2 * r, 3)).astype(dtype)  # rank 0 has none

    (got,) = both(hvd.allgather, tf.constant(rows(rank)))
    close(got, np.concatenate([rows(r) for r in range(SIZE)]))
    mixed = [tf.constant(rows(rank, "int16")), tf.constant([rank], tf.uint8)]
    first, second = both(lambda *tensors: hvd.grouped_allgather(tensors), *mixed)
    close(first, np.concatenate([rows(r) for r in range(SIZE)]))
    assert second.tolist() == [0, 1, 2]
    shapes = tf.function(lambda x: tf.constant(str(hvd.allgather(x).shape)))
    assert shapes(tf.constant(rows(rank))) == b"(None, 3)"

    for root in range(SIZE):
        for count in (5, 3000):
            (got,) = both(lambda x, root=root: hvd.broadcast(x * 2, root), tf.constant(block(rank, (count,))))
            close(got, block(root, (count,)) * 2)
    variables = [tf.Variable(block(rank, (4, 2)), dtype=tf.float32), tf.Variable(rank + 10, dtype=tf.int64)]
    hvd.broadcast_(variables, 1)
    close(variables[0], block(1, (4, 2)))
    assert int(variables[1]) == 11
    variables[0].assign_add(tf.fill([4, 2], float(rank)))
    tf.function(lambda: hvd.broadcast_(variables, 2) and None)()
    close(variables[0], block(1, (4, 2)) + 2)

    even = tf.constant(block(rank, (6, 2)), tf.float32)
    (got,) = both(hvd.alltoall, even)
    close(got, np.concatenate([block(r, (6, 2))[2 * rank : 2 * rank + 2] for r in range(SIZE)]))
    splits = [[1, 0, 2], [2, 2, 0], [0, 3, 1]]  # of 4 rows, so some stay
    starts = [np.cumsum([0, *each]) for each in splits]
    got, received = both(hvd.alltoall, tf.constant(block(rank, (4, 2)), tf.float32), tf.constant(splits[rank]))
    close(got, np.concatenate([block(r, (4, 2))[starts[r][rank] : starts[r][rank + 1]] for r in range(SIZE)]))
    assert received.dtype == np.int32
    assert received.tolist() == [splits[r][rank] for r in range(SIZE)]


def process_sets(tf: Any, hvd: Any, rank: int) -> None:
    pair = hvd.add_process_set([0, 2])
    (size, included) = both(
        lambda: (hvd.size_op(pair.process_set_id), hvd.process_set_included_op(pair.process_set_id))
    )
    assert (int(size), int(included)) == (2, int(rank != 1))
    if rank == 1:
        with pytest.raises(hvd.InvalidArgumentError, match="Allreduce: Rank 1 is not a member of the provided"):
            hvd._allreduce(tf.zeros([2]), process_set=pair)
    else:
        mine = tf.constant(block(rank, (5,)), tf.float32)
        (got,) = both(lambda x: hvd._allreduce(x, op=hvd.Average, process_set=pair), mine)
        close(got, (block(0, (5,)) + block(2, (5,))) / 2)
        (got,) = both(lambda x: hvd.broadcast(x, 2, process_set=pair), mine)
        close(got, block(2, (5,)))
    hvd.remove_process_set(pair)
    with pytest.raises(hvd.InvalidArgumentError, match="Process set provided does not exist"):
        hvd._allreduce(tf.zeros([2]), process_set=pair)


def names(tf: Any, hvd: Any, rank: int) -> None:
    """What a rank traces more than the others does not change its operations' names."""
    for _ in range(rank):
        tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))

    @tf.function
    def branch(x: Any) -> Any:
        with tf.name_scope(f"layer_{rank}"):  # as Keras numbers layers by process
            return tf.cond(tf.size(x) > 1, lambda: hvd._allreduce(x), lambda: hvd._allreduce(x, op=hvd.Max))

    close(branch(tf.constant([1.0, rank])), [3.0, 3.0])
    close(branch(tf.constant([float(rank)])), [2.0])

    @tf.function
    def loop(x: Any) -> Any:
        total = tf.zeros([])
        for i in tf.range(20):  # no iteration waits for the result of another
            y = hvd._allreduce(tf.fill([4], x * tf.cast(i, tf.float32)))
            total += y[0] * tf.cast(i, tf.float32)
        return total

    variable = tf.Variable(1.0)

    @tf.function
    def inner(x: Any) -> Any:
        return hvd._allreduce(x * variable)

    @tf.function
    def outer(x: Any, y: Any) -> Any:  # TensorFlow may run calls that read a variable at once, but for the token
        for _ in tf.range(5000 * rank):
            x = tf.sin(x)
        for _ in tf.range(5000 * (SIZE - rank)):
            y = tf.cos(y)
        return inner(x * 0 + 1), inner(y * 0 + 10)

    for _ in range(5):
        close(outer(tf.zeros([2]), tf.zeros([2])), [[3.0] * 2, [30.0] * 2])
        close(loop(tf.constant(rank + 1.0)), sum(i * i * 6.0 for i in range(20)))


def gradients(tf: Any, hvd: Any, rank: int) -> None:
    def of(call: Any, weights: Any, *values: Any) -> list[Any]:
        """Gradients of sum(weights * call(*values)); the weights differ per rank."""

        def gradient(*inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = tf.nest.flatten(call(*inputs))
                pairs = zip(weights, outputs, strict=True)
                loss = tf.add_n([tf.reduce_sum(tf.cast(w, tf.float64) * tf.cast(y, tf.float64)) for w, y in pairs])
            return tape.gradient(loss, inputs)

        return both(gradient, *values)

    x = tf.constant(block(rank, (4, 2)), tf.float32)
    weight = block(rank, (4, 2), 3)
    every = blocks((4, 2), 3)
    (got,) = of(lambda x: hvd._allreduce(x, op=hvd.Sum, prescale_factor=0.5), [weight], x)
    close(got, every.sum(0) * 0.5)
    y = tf.constant(block(rank, (3,)), tf.float64)
    got, other = of(lambda x, y: hvd._grouped_allreduce([x, y], op=hvd.Average), [weight, block(rank, (3,))], x, y)
    close(got, every.sum(0) / SIZE)
    close(other, blocks((3,)).sum(0) / SIZE)
    with pytest.raises(hvd.InvalidArgumentError, match="not for Max"):
        of(lambda x: hvd._allreduce(x, op=hvd.Max), [weight], x)

    rows = [1, 0, 2]  # of each rank
    start = sum(rows[:rank])
    mine = tf.constant(block(rank, (rows[rank], 2)), tf.float32)
    (got,) = of(hvd.allgather, [block(rank, (3, 2))], mine)
    close(got, (blocks((3, 2)).sum(0) / SIZE)[start : start + rows[rank]])
    for root in (0, 2):
        (got,) = of(lambda x, root=root: hvd.broadcast(x, root), [weight], x)
        close(got, every.sum(0) / SIZE if rank == root else np.zeros((4, 2)))

    splits = [[1, 0, 2], [2, 2, 0], [0, 3, 0]]
    arriving = [sum(splits[r][to] for r in range(SIZE)) for to in range(SIZE)]
    (got,) = of(lambda x: hvd.alltoall(x, splits[rank])[0], [block(rank, (arriving[rank], 2))], x)
    expected = np.zeros((4, 2))
    at = 0
    for to in range(SIZE):
        arrived = sum(splits[r][to] for r in range(rank))
        expected[at : at + splits[rank][to]] = block(to, (arriving[to], 2))[arrived : arrived + splits[rank][to]]
        at += splits[rank][to]
    close(got, expected)

    own = [2, 1, 1]
    for op, factor in [(hvd.Sum, SIZE * 0.5), (hvd.Average, 0.5)]:
        scatter = lambda x, op=op: hvd._reducescatter(x, op=op, prescale_factor=0.5)  # noqa: E731
        (got,) = of(scatter, [block(rank, (own[rank], 2))], x)
        close(got, np.concatenate([block(r, (own[r], 2)) for r in range(SIZE)]) * factor)

    def curvature(x: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(hvd._allreduce(x, op=hvd.Sum) ** 3)
            first = inner.gradient(loss, x)
        return outer.gradient(first, x)

    # d/dx of allreduce(3 s^2) with s = allreduce(x): allreduce(6 s * allreduce(1))
    (got,) = both(curvature, x)
    close(got, 6 * SIZE * SIZE * blocks((4, 2)).sum(0))


def test_more_rows_than_32_bits_count() -> None:
    run_ranks(more_rows_than_32_bits_count, 2, env=ENV)


def more_rows_than_32_bits_count() -> None:
    """Rows without elements cost nothing, so there can be 2^32 of them. The counts are outputs of int32."""
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow as hvd

    hvd.init()
    rank = hvd.rank()
    many = tf.zeros((1 << 32, 0), tf.uint8)
    from_both = [1 << 31, 1 << 31]
    to_0 = [1 << 32, 0]
    for function in (lambda call, *args: call(*args), lambda call, *args: tf.function(call)(*args)):
        for call, args in ((hvd.alltoall, (many, tf.constant(from_both, tf.int64))), (hvd.allgather, (many,))):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"fewer rows .*tf\.reshape"):
                function(call, *args)
        if rank == 0:
            with pytest.raises(tf.errors.InvalidArgumentError, match="4294967296 rows"):
                function(hvd.alltoall, many, tf.constant(to_0, tf.int64))
        else:
            _, received = function(hvd.alltoall, many, tf.constant(to_0, tf.int64))
            assert received.numpy().tolist() == [0, 0]
        most = (1 << 31) - 1
        rows, received = function(hvd.alltoall, many[: 2 * most], tf.constant([most, most], tf.int64))
        assert rows.shape == (2 * most, 0)
        assert received.numpy().tolist() == [most, most]
