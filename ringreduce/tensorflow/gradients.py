"""What tapes and optimizers do with gradients: all of a step's dense ones travel in one grouped operation."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Average
from ringreduce.common.groups import buckets, checked, mark_of
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.collectives import grouped_allreduce
from ringreduce.tensorflow.compression import Compressor
from ringreduce.tensorflow.native.running import id_of
from ringreduce.tensorflow.variables import VariableRef, refuse_strategies


class GradientReducer:
    """Reduces lists of gradients over the ranks of a process set.

    Gradients that are None stay None; where they are others on another rank, that is a MismatchError. On a rank outside
    the set, and in a set of one rank, the gradients come back as they are. IndexedSlices are gathered, in one operation
    for all of them, or made dense first.

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
        device_dense: str,
        device_sparse: str,
        compression: type[Compressor],
        sparse_as_dense: bool,
        op: int,
        gradient_predivide_factor: float,
        groups: int | Sequence[Sequence[Any]] | None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        self.process_set = process_set
        self._name = name
        self._devices = (device_dense, device_sparse)
        self._compression = compression
        self._sparse_as_dense = sparse_as_dense
        self._op = op
        self._predivide = gradient_predivide_factor if op == Average else 1.0
        self._groups = checked(groups, "tf.Variable", key=VariableRef)

    def __call__(
        self, grads: Sequence[Any], vars: Sequence[Any] | None = None, use_generic_names: bool = False
    ) -> list[Any]:
        """The reduced gradients, in order.

        Args:
            grads: tensors, IndexedSlices and None; the same kinds, shapes and dtypes on all ranks.
            vars: the variables they belong to; needed where groups are lists of variables.
            use_generic_names: operations are called grad_0, grad_1, ... and not after their place in the function, for
                ranks whose graphs differ elsewhere.
        """
        refuse_strategies(self._name, vars or ())
        results = list(grads)
        if self._sparse_as_dense:
            results = [tf.convert_to_tensor(one) if isinstance(one, tf.IndexedSlices) else one for one in results]
        id_of(self.process_set)  # raises where there is no such set, before "not included" is taken for an answer
        if not self.process_set.included() or self.process_set.size() == 1:
            return results
        mark = mark_of([at for at, one in enumerate(results) if one is not None], len(results))
        marks = [] if mark is None else [tf.zeros((0, mark))]
        with _scope(f"{self._name}_Allreduce"):
            for number, places in enumerate(self._buckets(results, vars) or [[] for _ in marks]):
                name = f"grad_{number}" if use_generic_names else None
                travels = [results[at] for at in places]
                reduced = self._reduce(travels + (marks if number == 0 else []), name, use_generic_names)
                for at, one in zip(places, reduced[: len(places)], strict=True):
                    results[at] = one
        return results

    def with_local(
        self,
        grads: Sequence[Any],
        vars: Sequence[Any],
        local: Collection[VariableRef],
        scale: bool,
        use_generic_names: bool = False,
    ) -> list[Any]:
        """The gradients, reduced but for those of variables that each rank has for itself.

        Args:
            local: these variables.
            scale: whether their gradients are divided by the number of ranks. The other variables' loss is the mean
                over the ranks, and then so is theirs.
            grads, vars, use_generic_names: as in a call.
        """
        results = list(grads)
        own = local_positions(vars, local)
        shared = [at for at in range(len(results)) if at not in own]
        reduced = self([results[at] for at in shared], [vars[at] for at in shared], use_generic_names)
        for at, one in zip(shared, reduced, strict=True):
            results[at] = one
        ranks = self.process_set.size() if self.process_set.included() else 1
        if scale and ranks != 1:
            for at in sorted(own):
                results[at] = None if results[at] is None else _multiplied(results[at], 1.0 / float(ranks or 1))
        return results

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
            gathered = grouped_allreduce([grads[at] for at in slices], name=name, **settings)
            reduced += [_multiplied(one, after) for one in gathered]
        for at, one in zip(dense + slices, reduced, strict=True):
            results[at] = one
        return results

    def _buckets(self, grads: list[Any], variables: Sequence[Any] | None) -> list[list[int]]:
        """Which gradients share an operation, by their places."""
        if variables is None and isinstance(self._groups, list):
            raise InvalidArgumentError(f"{self._name}: groups of variables need the variables of the gradients")
        places = [at for at, one in enumerate(grads) if one is not None]
        return buckets(places, self._groups, VariableRef, variables or ())


def local_positions(variables: Iterable[Any], local: Collection[VariableRef]) -> set[int]:
    """Where among variables those are that each rank has for itself."""
    return {at for at, variable in enumerate(variables) if VariableRef(variable) in local} if local else set()


_make_allreduce_grads_fn = GradientReducer  # Horovod's name


def _multiplied(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_multiplied(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.constant(factor, gradient.dtype)  # tf.cast() would go through float32


def _scope(name: str) -> contextlib.AbstractContextManager[Any]:
    scope: contextlib.AbstractContextManager[Any] = tf.name_scope(name)
    return scope
