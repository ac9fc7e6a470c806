"""Errors of TensorFlow's operators: their classes and texts, XLA, few threads, and a peer that is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tensorflow_ranks
from deadlines import SOON_S
from ranks import run_ranks, send_to_test, start_ranks
from tensorflow_ranks import ENV, close

pytestmark = pytest.mark.skipif(not tensorflow_ranks.INSTALLED, reason="TensorFlow is not installed")
XLA = {"TF_XLA_FLAGS": "--tf_xla_auto_jit=2 --tf_xla_min_cluster_size=1 --tf_xla_cpu_global_jit"}


def test_errors_name_their_cause_and_leave_the_job_usable() -> None:
    assert run_ranks(errors, 2, env=ENV) == ["done"] * 2


def errors() -> str:
    tf = tensorflow_ranks.start(inter=1)
    import ringreduce.tensorflow.mpi_ops as hvd
    from ringreduce.tensorflow import rooted
    from ringreduce.tensorflow.native.errors import ours_of

    def check(call: Callable[[], Any], ours: type[Exception], theirs: type[Exception], text: str) -> None:
        """Eagerly the error is of both classes; from a graph it is TensorFlow's, and its text tells ours."""
        with pytest.raises(ours, match=text) as eager:
            call()
        assert isinstance(eager.value, theirs)
        with pytest.raises(theirs, match=text) as graph:
            tf.function(call)()
        assert ours_of(graph.value) is ours

    absent = (hvd.NotInitializedError, tf.errors.FailedPreconditionError)
    check(lambda: hvd._allreduce(tf.zeros([2])), *absent, r"use hvd\.init\(\)")
    check(hvd.rank_op, *absent, "has not been initialized")
    hvd.init()
    rank = hvd.rank()

    mismatch = (hvd.MismatchError, tf.errors.FailedPreconditionError)
    check(
        lambda: hvd._allreduce(tf.zeros([2 + rank])), *mismatch, r"Mismatched ALLREDUCE tensor shapes: .*\[2\].*\[3\]"
    )
    dtype = [tf.float32, tf.int64][rank]
    check(lambda: hvd.broadcast(tf.zeros([9], dtype), 0), *mismatch, "Mismatched data types: .*float32.*int64")
    check(lambda: hvd.broadcast(tf.zeros([9]), rank), *mismatch, "Mismatched BROADCAST root ranks")
    op = [hvd.Sum, hvd.Max][rank]
    check(lambda: hvd._allreduce(tf.zeros([9]), op=op), *mismatch, "Mismatched reduction operation")
    check(lambda: hvd.allgather(tf.zeros([2, 2 + rank])), *mismatch, "Mismatched ALLGATHER tensor shapes")

    invalid = (hvd.InvalidArgumentError, tf.errors.InvalidArgumentError)
    check(lambda: hvd.allgather(tf.zeros([])), *invalid, "tried to ALLGATHER a rank-zero tensor")
    check(lambda: hvd._reducescatter(tf.zeros([])), *invalid, "does not support scalar inputs")
    check(lambda: hvd._reducescatter(tf.zeros([4]), op=hvd.Max), *invalid, "only supports AVERAGE and SUM")
    check(lambda: hvd.broadcast(tf.zeros([2]), 2), *invalid, "invalid root rank 2")
    check(lambda: hvd.broadcast(tf.zeros([2]), 2**32), *invalid, "root_rank=4294967296 is out of range")
    with pytest.raises(hvd.InvalidArgumentError, match=r"root_rank=0\.5: a whole number is expected"):
        hvd.broadcast(tf.zeros([2]), 0.5)
    check(lambda: hvd._allreduce(tf.zeros([2]), name="a\0b"), *invalid, "tensor_name 'a' goes on after a NUL")
    close(hvd._allreduce(tf.ones([2]), op=hvd.Sum, prescale_factor=float("inf")), [float("inf")] * 2)
    for reduce in (hvd._allreduce, hvd._reducescatter):
        with pytest.raises(hvd.InvalidArgumentError, match=r"op='sum' is a string: write op=hvd\.Sum"):
            reduce(tf.zeros([2]), op="sum")  # graph or not, no operation is made
    check(lambda: hvd._allreduce(tf.zeros([2]), op=8), *invalid, "bitwise_and.*float32|float32.*bitwise_and")
    check(lambda: hvd.size_op(77), *invalid, "Process set provided does not exist")
    splits = "Number of entries in splits does not equal number of workers"
    check(lambda: hvd.alltoall(tf.zeros([4]), [1, 1, 1]), *invalid, splits)
    check(lambda: hvd.alltoall(tf.zeros([4]), tf.zeros([0], tf.int32)), *invalid, splits)
    check(lambda: hvd.alltoall(tf.zeros([4]), [-1, 3]), *invalid, "at least 0 rows")
    check(lambda: hvd.alltoall(tf.zeros([4]), [3, 3]), *invalid, "greater than the first dimension")
    check(lambda: hvd.alltoall(tf.zeros([3])), *invalid, "not an even multiple")
    unavailable = (hvd.UnavailableError, tf.errors.UnimplementedError)
    check(lambda: hvd._allreduce(tf.zeros([3]), op=hvd.Adasum), *unavailable, "adasum")
    with pytest.raises(hvd.InvalidArgumentError, match="32-bit integer"):
        hvd.alltoall(tf.zeros([4]), [2.0, 2.0])
    with pytest.raises(hvd.InvalidArgumentError, match="1D splits"):
        hvd.alltoall(tf.zeros([4]), [[2, 2]])
    with pytest.raises(hvd.InvalidArgumentError, match="has not been registered"):
        hvd._allreduce(tf.zeros([4]), process_set=hvd.ProcessSet([0, 1]))
    for call in (hvd._allreduce, hvd.allgather, hvd.alltoall, partial(rooted.reduce, root_rank=0)):
        with pytest.raises(hvd.InvalidArgumentError, match=r"process_set=\[0\] is no ProcessSet: give what"):
            call(tf.zeros([4]), process_set=[0])
    invented = hvd.ProcessSet([0, 1])
    invented.process_set_id = 10
    with tf.Graph().as_default(), pytest.raises(ValueError, match="has not been registered"):
        hvd._allreduce(tf.zeros([4]), process_set=invented)
    with pytest.raises(hvd.InvalidArgumentError, match="complex64 is not supported; supported: float16"):
        hvd._allreduce(tf.zeros([2], tf.complex64))

    compiled = tf.function(lambda x: hvd._allreduce(x * 2), jit_compile=True)
    with pytest.raises(tf.errors.UnimplementedError, match=r"set jit_compile=False .*model\.compile") as refused:
        compiled(tf.ones([4]))
    assert ours_of(refused.value) is hvd.UnavailableError

    close(hvd._allreduce(tf.fill([2], rank + 1.0)), [3.0, 3.0])
    many(tf, hvd, rank)
    alone = [hvd.add_process_set([one]) for one in range(2)]
    of_mine = partial(hvd._allreduce, process_set=alone[rank])
    traced = tf.function(of_mine)
    close(traced(tf.fill([2], rank + 1.0)), [rank + 1.0] * 2)
    hvd.shutdown()
    check(lambda: hvd._allreduce(tf.zeros([2])), *absent, "has not been initialized")
    hvd.init()
    close(tf.function(hvd._allreduce)(tf.fill([2], rank + 1.0)), [3.0, 3.0])
    for one in reversed(alone):
        hvd.add_process_set(one)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Process set provided does not exist"):
        traced(tf.ones([2]))
    close(tf.function(of_mine)(tf.fill([2], rank + 1.0)), [rank + 1.0] * 2)
    return "done"


def many(tf: Any, hvd: Any, rank: int) -> None:
    """Many operators and one thread to run them."""

    @tf.function
    def independent(x: Any) -> Any:
        # Without data dependencies TensorFlow may run them in any order, but that their program order orders them.
        return [hvd._allreduce(tf.tanh(x + i) + i, op=hvd.Max) for i in range(60)] + [
            hvd.allgather(tf.fill([rank + 1, 2], float(i))) for i in range(20)
        ]

    for _ in range(5):
        results = independent(tf.fill([1 << 12], rank * 20.0))
        for i in range(1, 60):
            close(results[i], [1.0 + i] * (1 << 12))
        for i in range(20):
            close(results[60 + i], [[float(i)] * 2] * 3)


def test_one_batch_more_on_one_rank() -> None:
    """Rank 1 goes on to its evaluation, whose first operation rank 0 calls only after the batch: nobody can go on."""
    for kind, text in run_ranks(batches, 2, env=ENV | {"RINGREDUCE_VERDICT": "2"}):
        assert kind == "FailedPreconditionError", text
        assert "Rank 0 waits in allreduce 'gradient" in text
        assert "Rank 1 waits in allreduce 'loss" in text


def batches() -> tuple[str, str]:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow.mpi_ops as hvd

    hvd.init()

    @tf.function
    def step(x: Any) -> Any:
        return hvd._allreduce(x, name="gradient"), hvd._allreduce(x + 1, name="other")

    def train_and_evaluate() -> None:
        for _ in range(4 - hvd.rank()):
            step(tf.ones([1 << 16]))
        tf.function(lambda: hvd._allreduce(tf.ones([3]), name="loss"))()

    with pytest.raises(tf.errors.OpError) as raised:
        train_and_evaluate()
    return type(raised.value).__name__, str(raised.value)


def test_a_killed_peer_is_an_error_in_the_graph() -> None:
    with start_ranks(forever, 2, env=ENV | XLA) as job:
        for rank in range(2):
            assert job.receive(rank) == "running"
        job.kill(1, signal.SIGKILL)
        survivor, _ = job.wait(SOON_S)
    assert survivor.value is not None, str(survivor)
    kind, ours, message, again = survivor.value
    assert (kind, ours) == ("UnknownError", "PeerLostError")
    assert "lost rank 1: its process has ended without shutdown()" in message
    assert "lost rank 1" in again


def forever() -> tuple[str, str, str, str]:
    tf = tensorflow_ranks.start()
    import ringreduce.tensorflow.mpi_ops as hvd
    from ringreduce.tensorflow.native.errors import ours_of

    hvd.init()

    @tf.function
    def step(x: Any) -> Any:
        return hvd._grouped_allreduce([x * 2, x + 1], op=hvd.Average)

    # XLA compiles what is around the operator, unasked, as TF_XLA_FLAGS has it, and leaves the operator out.
    first, second = step(tf.fill([1 << 16], float(hvd.rank())))
    close(first, [1.0] * (1 << 16))
    close(second, [1.5] * (1 << 16))
    send_to_test("running")
    try:
        while True:
            step(tf.ones([1 << 16]))
    except tf.errors.OpError as error:
        with pytest.raises(hvd.PeerLostError) as again:
            hvd.barrier()
        return type(error).__name__, ours_of(error).__name__, error.message, str(again.value)
