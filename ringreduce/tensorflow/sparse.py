"""All-reduce of tf.IndexedSlices: what the ranks have is gathered, and all of it together is the sum."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from ringreduce.collectives.ops import Adasum, Average, Sum
from ringreduce.job.process_sets import ProcessSet
from ringreduce.tensorflow import mpi_ops


class SparseOperationError(NotImplementedError):
    """A reduction that tf.IndexedSlices do not have. Horovod raises NotImplementedError."""


def check(op: int, prescale_factor: float, postscale_factor: float) -> None:
    """Raises SparseOperationError where slices cannot be reduced so."""
    if op == Adasum:
        raise SparseOperationError(
            "The Adasum reduction does not currently support sparse tensors. As a workaround please pass "
            "sparse_as_dense=True to DistributedOptimizer"
        )
    if op not in (Average, Sum):
        raise SparseOperationError("Only Sum and Average ops are supported with tf.IndexedSlices")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise SparseOperationError("Pre/postscale_factor are not supported with tf.IndexedSlices")


def allreduce(
    slices: Sequence[tf.IndexedSlices],
    op: int,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[tf.IndexedSlices]:
    """Sums or averages slices over all ranks: one grouped all-gather of all values and indices.

    The number of slices may differ between ranks. Rows of one index are not added up: IndexedSlices mean their sum. An
    average of integers has floating-point values, as in Horovod, where values travel without compression too.
    """
    parts = [tf.convert_to_tensor(part) for one in slices for part in (one.values, one.indices)]
    gathered = mpi_ops.grouped_allgather(parts, name=name, ignore_name_scope=ignore_name_scope, process_set=process_set)
    reduced = []
    for number, one in enumerate(slices):
        values = gathered[2 * number]
        if op == Average:
            values = values / tf.cast(process_set.size(), values.dtype)
        reduced.append(tf.IndexedSlices(values, gathered[2 * number + 1], dense_shape=one.dense_shape))
    return reduced
