"""All-reduce and reduce-scatter with Horovod's arguments: average=, compression=, tf.IndexedSlices.

mpi_ops.py has the operations on dense tensors. `op` defaults to Average; `average` is Horovod's old spelling of it.
Errors are those of ringreduce.allreduce: eagerly as they are, in a graph as the tf.errors class nearest to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Adasum, Average
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow import adasum, mpi_ops, sparse
from ringreduce.tensorflow.compression import Compression, Compressor
from ringreduce.tensorflow.util import handle_average_backwards_compatibility
from ringreduce.tensorflow.variables import plain, refuse_strategies


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduces a tensor over all ranks into a new one; differentiable (the gradient is reduced the same way).

    Args:
        tensor: a tensor, variable or array, the same shape and dtype on all ranks; or tf.IndexedSlices of any number
            of rows, which are gathered (op Average or Sum).
        average: Horovod's old way to say op: True for Average, False for Sum.
        device_dense, device_sparse: where TensorFlow places the operation; "" leaves that to it.
        compression: applied before, and undone after; IndexedSlices travel as they are.
        op: Average (default; truncates integers toward zero), Sum, Min, Max, Product; Adasum: see adasum.py.
        prescale_factor, postscale_factor: multiply each input, and the result.
        name: identifies the operation; None: its number in the graph, eagerly the order of calls.
        process_set: the ranks that take part.
        ignore_name_scope: leaves the scopes around the node out of the operation's name.

    Returns:
        A tensor of the same shape and dtype; IndexedSlices for IndexedSlices, of floating-point values where integers
        are averaged.

    Raises:
        NotImplementedError: IndexedSlices with another op than Average and Sum, or with factors.

    >>> hvd.allreduce(tf.constant([1.0, 2.0]), op=hvd.Sum)  # on two ranks
    <tf.Tensor: shape=(2,), dtype=float32, numpy=array([2., 4.], dtype=float32)>
    """
    chosen = handle_average_backwards_compatibility(op, average)
    refuse_strategies("hvd.allreduce", [tensor])
    if isinstance(tensor, tf.IndexedSlices):
        sparse.check(chosen, prescale_factor, postscale_factor)
        with _placed(device_sparse):
            return sparse.allreduce([tensor], chosen, name, process_set, ignore_name_scope)[0]
    settings = (name, chosen, prescale_factor, postscale_factor, ignore_name_scope, process_set)
    with _placed(device_dense):
        return _compressed(_allreduce, [tensor], compression, *settings)[0]


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """allreduce() of several tensors as one operation, which succeeds or fails as a whole. Returns a list.

    Shapes and dtypes may be mixed. IndexedSlices among them travel in a second operation, after the dense ones.
    """
    chosen = handle_average_backwards_compatibility(op, average)
    refuse_strategies("hvd.grouped_allreduce", tensors)
    dense = [at for at, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    slices = [at for at, tensor in enumerate(tensors) if isinstance(tensor, tf.IndexedSlices)]
    if slices:
        sparse.check(chosen, prescale_factor, postscale_factor)
    results: list[Any] = [None] * len(tensors)
    if dense:
        settings = (name, chosen, prescale_factor, postscale_factor, ignore_name_scope, process_set)
        with _placed(device_dense):
            reduced = _compressed(_allreduce, [tensors[at] for at in dense], compression, *settings)
        for at, one in zip(dense, reduced, strict=True):
            results[at] = one
    if slices:
        stem = None if name is None else f"{name}.sparse"
        with _placed(device_sparse):
            gathered = sparse.allreduce([tensors[at] for at in slices], chosen, stem, process_set, ignore_name_scope)
        for at, one in zip(slices, gathered, strict=True):
            results[at] = one
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks and leaves each rank its own rows of the result; differentiable.

    Args:
        tensor: at least one dimension; the same shape and dtype on all ranks.
        op: Average (default) or Sum. The other arguments are allreduce()'s.

    Returns:
        A tensor of dim0 // size rows; the first dim0 % size ranks get one more.
    """
    refuse_strategies("hvd.reducescatter", [tensor])
    settings = (name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor)
    with _placed(device_dense):
        return _compressed(mpi_ops._grouped_reducescatter, [tensor], compression, *settings)[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[tf.Tensor]:
    """reducescatter() of several tensors, whose dtypes may be mixed. Returns a list."""
    refuse_strategies("hvd.grouped_reducescatter", tensors)
    settings = (name, op, ignore_name_scope, process_set, prescale_factor, postscale_factor)
    with _placed(device_dense):
        return _compressed(mpi_ops._grouped_reducescatter, tensors, compression, *settings)


def _compressed(
    collective: Callable[..., list[tf.Tensor]], tensors: Sequence[Any], compression: type[Compressor], *settings: Any
) -> list[tf.Tensor]:
    """What a collective gives for tensors, variables or arrays that travel compressed."""
    pairs = [compression.compress(tf.convert_to_tensor(plain(tensor))) for tensor in tensors]
    results = collective([tensor for tensor, _ in pairs], *settings)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs, strict=True)]


def _allreduce(
    tensors: list[tf.Tensor],
    name: str | None,
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    ignore_name_scope: bool,
    process_set: ProcessSet,
) -> list[tf.Tensor]:
    factors = (prescale_factor, postscale_factor)
    if op == Adasum:
        return adasum.allreduce(tensors, name, *factors, ignore_name_scope, process_set)
    return mpi_ops._grouped_allreduce(tensors, name, op, *factors, ignore_name_scope, process_set)


def _placed(device: str) -> contextlib.AbstractContextManager[Any]:
    """On a device; where none is named, TensorFlow's choice, without the cost of asking for it."""
    place: contextlib.AbstractContextManager[Any] = tf.device(device) if device else contextlib.nullcontext()
    return place
