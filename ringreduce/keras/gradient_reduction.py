"""Gradients become those of all ranks: what a DistributedOptimizer was told, and what it does with a list of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras import ops

from ringreduce.collectives.ops import Max, Min
from ringreduce.common.groups import buckets, mark_of
from ringreduce.errors import MismatchError
from ringreduce.keras import backend, training
from ringreduce.keras.compression import NoneCompressor
from ringreduce.keras.first_step import FirstStep
from ringreduce.keras.settings import Settings, check_variable

Gradients = Sequence[Any]
Key = Callable[[Any], Any]
"""The optimizer's own key of a variable: Keras and TensorFlow variables that are the same one have the same."""


class GradientReduction:
    """Reduces lists of gradients. An optimizer has one."""

    def __init__(self, settings: Settings, local_layers: Sequence[Any] = ()) -> None:
        self.settings = settings
        self.local_layers = list(local_layers)  # asked for their variables when these are needed: then they are built
        self.local_variables: list[Any] = []
        self.first_step = FirstStep(training, settings, self.local)

    def another(self) -> GradientReduction:
        """One of the same settings and with the same local variables, for another optimizer."""
        made = GradientReduction(self.settings, self.local_layers)
        made.local_variables += self.local_variables
        return made

    def register_local(self, variable: Any) -> None:
        """Makes a variable each rank's own. Raises InvalidArgumentError for what is none."""
        check_variable(training, variable, "register_local_var()")
        self.local_variables.append(variable)

    def is_needed(self) -> bool:
        """False outside of the process set, and in a set of one rank.

        Raises:
            NotInitializedError: before init().
            InvalidArgumentError: the process set is not registered.
        """
        process_set = self.settings.process_set
        return process_set.included() is not False and process_set.group.size > 1

    def reduce(self, gradients: Gradients, variables: Sequence[Any], key: Key, mark: int | None = None) -> list[Any]:
        """The gradients of all ranks; those of local variables divided by the number of ranks. Collective.

        Neither may have None in it. The same variables in the same order on all ranks, which mark (mark_of()) is for.
        """
        backend.active().check()
        reduced = list(gradients)
        local = {key(variable) for variable in self.local()}
        shared = []
        for index, variable in enumerate(variables):
            if key(variable) not in local:
                shared.append(index)
            elif self.settings.scale_local_gradients:
                reduced[index] = backend.active().divided(reduced[index], self.settings.process_set.size() or 1)
        groups = buckets(shared, self.settings.groups, key, variables)
        for number, group in enumerate(groups if groups or mark is None else [[]]):
            travels = [reduced[i] for i in group]
            for index, gradient in zip(group, self._together(travels, number, None if number else mark), strict=True):
                reduced[index] = gradient
        return reduced

    def mark(self, variables: Sequence[Any], present: Sequence[int], key: Key) -> int | None:
        """mark_of() those of the variables that have a gradient; local ones do not count.

        Args:
            present: their places among the variables.
        """
        if len(present) == len(variables):
            return None
        local = {key(variable) for variable in self.local()}
        shared = [place for place, variable in enumerate(variables) if key(variable) not in local]
        have = set(present)
        return mark_of([at for at, place in enumerate(shared) if place in have], len(shared))

    def largest(self, values: Gradients) -> list[Any]:
        """The largest of each element over the ranks. Collective."""
        return self._call(values, self._named("overwritten"), Max)

    def all_true(self, flag: Any) -> Any:
        """Whether a flag, a tensor without dimensions, is true on all ranks: a tensor. Collective."""
        backend.active().check()
        votes = ops.reshape(ops.cast(flag, "int32"), (1,))
        return ops.cast(ops.reshape(self._call([votes], self._named("finite"), Min)[0], ()), "bool")

    def local(self) -> list[Any]:
        """The variables that are each rank's own."""
        return self.local_variables + [v for layer in self.local_layers for v in layer.trainable_variables]

    def _named(self, part: object) -> str | None:
        return None if self.settings.name is None else f"{self.settings.name}.{part}"

    def _together(self, gradients: list[Any], number: int, mark: int | None) -> list[Any]:
        """Gradients as one operation; sparse ones, which are gathered, each by itself."""
        active, settings = backend.active(), self.settings
        sparse = [index for index, gradient in enumerate(gradients) if active.is_sparse(gradient)]
        if settings.sparse_as_dense:
            for index in sparse:
                gradients[index] = active.dense(gradients[index])
            sparse = []
        dense = [index for index in range(len(gradients)) if index not in sparse]
        factor = settings.gradient_predivide_factor
        travels = [gradients[i] for i in dense]
        if mark is not None:
            empty = ops.reshape(travels[0], (-1,))[:0] if travels else ops.zeros((0,), "float32")
            travels.append(ops.reshape(empty, (0, mark)))
        results = self._call(travels, self._named(number), settings.op, 1 / factor, factor, settings.compression)
        for index, result in zip(dense, results[: len(dense)], strict=True):
            gradients[index] = result
        for index in sparse:
            name = self._named(f"{number}.{index}")
            gradients[index] = active.sparse_allreduce(gradients[index], name, settings.op, settings.process_set)
        return gradients

    def _call(
        self,
        tensors: Gradients,
        name: str | None,
        op: int,
        prescale: float = 1.0,
        postscale: float = 1.0,
        compression: Any = NoneCompressor,
    ) -> list[Any]:
        if not tensors:
            return []
        try:
            return backend.active().grouped_allreduce(
                tensors, name, op, prescale, postscale, compression, self.settings.process_set
            )
        except MismatchError as error:
            raise MismatchError(
                f"{error}. DistributedOptimizer reduces the gradients of all variables that have one: a variable has "
                "to have a gradient on all ranks or on none, and all ranks need equally many batches in an epoch"
            ) from error


def is_sum(settings: Settings) -> bool:
    """Whether gradients of the passes before a step are added up, where Keras takes their mean."""
    return settings.backward_passes_per_step > 1 and not settings.average_aggregated_gradients
