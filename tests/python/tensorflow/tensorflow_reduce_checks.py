"""Horovod's arguments of the collectives that reduce, on three ranks: average=, compression=, tf.IndexedSlices."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_checks import near

import ringreduce.tensorflow as hvd


def compression_rounds(rank: int) -> None:
    fine = tf.constant([1 + 2.0**-9, 3.0], tf.float64)  # the first is no bfloat16, and both are float16
    near(hvd.allreduce(fine, compression=hvd.Compression.fp16, op=hvd.Sum), [3 + 3 * 2.0**-9, 9.0], 1e-3)
    coarse = hvd.allreduce(fine, compression=hvd.Compression.bf16, op=hvd.Sum)
    assert coarse.dtype == tf.float64
    assert coarse.numpy().tolist() == [3.0, 9.0]
    whole = hvd.allreduce(tf.constant([257, rank]), compression=hvd.Compression.bf16, op=hvd.Sum)
    assert whole.numpy().tolist() == [771, 3]
    extreme = tf.constant([[1e-8, 1e5]], tf.float64)  # of which float16 makes 0 and infinity
    of_slices = tf.IndexedSlices(extreme, [rank], [3, 2])  # travel as they are
    for compression in (hvd.Compression.bf16, hvd.Compression.fp16):
        slices = hvd.allreduce(of_slices, compression=compression, op=hvd.Sum)
        assert tf.convert_to_tensor(slices).numpy().tolist() == [[1e-8, 1e5]] * 3
        slices = hvd.grouped_allreduce([of_slices], compression=compression)[0]
        near(tf.convert_to_tensor(slices), np.full((3, 2), [1e-8 / 3, 1e5 / 3]))


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
    near(hvd.allreduce(x, hvd.Average), [2.0, 4.0])
    near(hvd.allreduce(x, hvd.Sum), [6.0, 12.0])
    near(hvd.grouped_allreduce([x], hvd.Max)[0], [3.0, 6.0])
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
    whole = hvd.allreduce(tf.IndexedSlices(tf.constant([[-5 - rank]]), [0], [1, 1]))
    assert whole.dtype == tf.float64  # as in Horovod
    near(tf.convert_to_tensor(whole), [[-6.0]])
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


CHECKS = [
    compression_rounds,
    arguments,
]
