"""What tapes and optimizers do with gradients: all of a step's dense ones travel in one grouped operation."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from ringreduce.errors import InvalidArgumentError
from ringreduce.ops import Average
from ringreduce.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.compression import Compression, Compressor
from ringreduce.tensorflow.native.running import id_of
from ringreduce.tensorflow.reduce import grouped_allreduce
from ringreduce.tensorflow.variables import VariableRef, refuse_strategies


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Gradients that are None stay None, on all ranks alike. On a rank outside the set, and in a set of one rank, the
    gradients come back as they are. IndexedSlices are gathered, in one operation for all of them, or made dense first.

    Args:
        name: of the scope around the operations in a graph.
        device_dense, device_sparse: where TensorFlow places the operations; "" leaves that to it.
        compression: applied before, and undone after.
        sparse_as_dense: whether IndexedSlices become dense tensors first.
        op: Average, Sum, Adasum, Min, Max or Product.
        gradient_predivide_factor: with op=Average, gradients are divided by it before they are summed, and
            multiplied by it / size after.
        groups: None for one operation; a number of operations to share gradients out to, in order; or a list of lists
            of variables, each an operation, and one more for the rest.
        process_set: the ranks that take part.
    """

    def __init__(
        self,
        name: str,
        device_dense: str = "",
        device_sparse: str = "",
        compression: type[Compressor] = Compression.none,
        sparse_as_dense: bool = False,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: int | Sequence[Sequence[Any]] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self.process_set = process_set
        self._name = name
        self._devices = (device_dense, device_sparse)
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = gradient_predivide_factor if op == Average else 1.0
        self._groups = groups

    def __call__(
        self, grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        """The reduced gradients, in order.

        Args:
            grads: tensors, IndexedSlices and None; the same kinds, shapes and dtypes on all ranks.
            vars: the variables they belong to; needed where groups are lists of variables.
            use_generic_names: operations are called grad_0, grad_1, ... and not after their nodes, for ranks whose
                graphs differ elsewhere.
        """
        refuse_strategies(self._name, vars or ())
        results = list(grads)
        if self._sparse_as_dense:
            results = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in results]
        id_of(self.process_set)  # raises where there is no such set, before "not included" is taken for an answer
        if not self.process_set.included() or self.process_set.size() == 1:
            return results
        before: list[Any] = []
        with _scope(f"{self._name}_Allreduce"):
            for number, places in enumerate(self._buckets(results, vars)):
                with tf.control_dependencies(before):  # one order on all ranks, also in graphs of TensorFlow 1
                    name = f"grad_{number}" if use_generic_names else None
                    reduced = self._reduce([results[at] for at in places], name, use_generic_names)
                for at, one in zip(places, reduced, strict=True):
                    results[at] = one
                last = reduced[-1]
                before = [last.values if isinstance(last, tf.IndexedSlices) else last]
        return results

    def scaled(self, grads: Sequence[Any]) -> list[Any]:
        """Gradients of variables that each rank has for itself, divided by the number of ranks.

        The other variables' loss is the mean over the ranks, and then so is theirs.
        """
        ranks = self.process_set.size() if self.process_set.included() else 1
        return [one if one is None or ranks == 1 else _multiplied(one, 1.0 / float(ranks or 1)) for one in grads]

    def _reduce(self, grads: list[Any], name: str | None, generic: bool) -> list[Any]:
        """One operation; with IndexedSlices a second. The collectives take no factors for these: they multiply here."""
        before, after = 1.0 / self._predivide, self._predivide
        slices = [at for at, one in enumerate(grads) if isinstance(one, tf.IndexedSlices)] if before != 1.0 else []
        for at in slices:
            grads[at] = _multiplied(grads[at], before)
        dense = [at for at in range(len(grads)) if at not in slices]
        settings: dict[str, Any] = {
            "device_dense": self._devices[0],
            "device_sparse": self._devices[1],
            "compression": self._compression,
            "op": self._op,
            "process_set": self.process_set,
            "ignore_name_scope": generic,
        }
        results: list[Any] = [None] * len(grads)
        reduced = []
        if dense:
            factors: dict[str, Any] = {"prescale_factor": before, "postscale_factor": after}
            reduced = grouped_allreduce([grads[at] for at in dense], name=name, **factors, **settings)
        if slices:
            name = None if name is None else f"{name}.sparse"
            with tf.control_dependencies(reduced[:1]):
                gathered = grouped_allreduce([grads[at] for at in slices], name=name, **settings)
            reduced += [_multiplied(one, after) for one in gathered]
        for at, one in zip(dense + slices, reduced, strict=True):
            results[at] = one
        return results

    def _buckets(self, grads: list[Any], variables: Sequence[Any] | None) -> list[list[int]]:
        """Which gradients share an operation, by their places."""
        places = [at for at, one in enumerate(grads) if one is not None]
        if not self._groups:
            return [places] if places else []
        if isinstance(self._groups, int):
            return [part for part in split_list(places, self._groups) if part]
        if variables is None:
            raise InvalidArgumentError(f"{self._name}: groups of variables need the variables of the gradients")
        of: dict[VariableRef, int] = {}
        for number, group in enumerate(self._groups):
            for variable in group:
                if of.setdefault(VariableRef(variable), number) != number:
                    raise InvalidArgumentError("A variable can only appear once in groups.")
        rest = len(self._groups)
        buckets: list[list[int]] = [[] for _ in range(rest + 1)]
        for at in places:
            buckets[of.get(VariableRef(variables[at]), rest)].append(at)
        return [bucket for bucket in buckets if bucket]


def split_list(items: list[int], parts: int) -> list[list[int]]:
    """A list in so many runs, whose lengths differ by one at most; empty ones come last."""
    length, longer = divmod(len(items), parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + length + (part < longer))
    return [items[start:end] for start, end in pairwise(ends)]


def check_options(
    op: int, gradient_predivide_factor: float, num_groups: int, groups: Any, stacklevel: int = 3
) -> int | Sequence[Sequence[Any]] | None:
    """The groups that two ways of saying it amount to.

    Raises:
        InvalidArgumentError: a factor with another op than Average; groups that are neither number nor lists.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor == 0.0:
        raise InvalidArgumentError("gradient_predivide_factor is 0")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed",
            DeprecationWarning,
            stacklevel=stacklevel,
        )
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int) and not isinstance(groups, bool) and groups >= 0:
        return groups
    if isinstance(groups, (list, tuple)) and all(isinstance(group, (list, tuple)) for group in groups):
        return groups
    raise InvalidArgumentError("groups should be a non-negative integer or a list of list of tf.Variable.")


def _make_allreduce_grads_fn(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: type[Compressor],
    sparse_as_dense: bool,
    op: int,
    gradient_predivide_factor: float,
    groups: int | Sequence[Sequence[Any]] | None,
    process_set: ProcessSet = global_process_set,
) -> GradientReducer:
    """Horovod's name for what makes a function of gradients and variables that gives the reduced gradients."""
    return GradientReducer(
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )


def _multiplied(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_multiplied(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.constant(factor, gradient.dtype)  # tf.cast() would go through float32


def _scope(name: str) -> contextlib.AbstractContextManager[Any]:
    scope: contextlib.AbstractContextManager[Any] = tf.name_scope(name)
    return scope
