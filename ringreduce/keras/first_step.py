"""Whether the ranks train from the same weights and optimizer state: compared once, after a step.

Within a compiled step nothing can be compared, so it is done outside of them: after fit()'s first batch and its
callbacks, and before the second apply() of a loop that is not compiled. By then scripts have broadcast what Keras made
in the first batch, as Horovod's do. Gradients are the same on all ranks, so what began alike is alike after a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from ringreduce.collectives.ops import Min
from ringreduce.common import same_start
from ringreduce.job import collective_json
from ringreduce.job.process_sets import ProcessSet
from ringreduce.keras.settings import Settings

CURE = (
    "Give hvd.callbacks.BroadcastGlobalVariablesCallback(0) to model.fit(), or call "
    "hvd.broadcast_variables(model.weights + model.optimizer.variables, root_rank=0) before or after the first step of "
    "your own loop"
)


NAME = "keras.first_step"  # of the operations: one comparison at a time


class Training(Protocol):
    """What training.py and legacy/training.py have of it, each for its Keras."""

    def synchronize(self, model: Any) -> None:
        """Puts into the variables what a trainer keeps aside."""

    def optimizer_variables(self, optimizer: Any) -> Sequence[Any]: ...

    def name_of(self, variable: Any) -> str: ...

    def array_of(self, variable: Any) -> np.ndarray: ...

    def is_one_of(self, variable: Any, others: Iterable[Any]) -> bool: ...

    def broadcast_variables(self, variables: Iterable[Any], root_rank: int, process_set: ProcessSet) -> None: ...


class FirstStep:
    """One optimizer's comparison.

    Args:
        training: of the Keras that the optimizer is of.
        settings: of the optimizer.
        local: gives the variables that are each rank's own.
    """

    def __init__(self, training: Training, settings: Settings, local: Callable[[], Sequence[Any]]) -> None:
        self._training = training
        self._settings = settings
        self._local = local
        self._applied = 0
        self.is_compared = False

    def before_apply(self, optimizer: Any, variables: Iterable[Any]) -> None:
        """Compares before the second one. Collective; to be called outside of graphs only."""
        if not self._is_needed():
            return
        # The fewest of any rank's: a rank that had joined may begin when others have made many.
        (applied,) = collective_json.allreduce_integers(
            self._settings.process_set.group, f"{NAME}.applied", [self._applied], Min
        )
        self._applied += 1
        if applied > 0:
            self._compare(optimizer, variables)

    def after_batch(self, model: Any) -> None:
        """Compares, if that has not been done. Collective."""
        if self._is_needed():
            self._training.synchronize(model)
            self._compare(model.optimizer, model.trainable_variables)

    def _is_needed(self) -> bool:
        process_set = self._settings.process_set
        return not self.is_compared and process_set.included() is not False and process_set.group.size > 1

    def _compare(self, optimizer: Any, weights: Iterable[Any]) -> None:
        process_set = self._settings.process_set
        found: list[tuple[Any, str, np.ndarray]] = []

        def describe() -> tuple[list[str], list[Any]]:
            found.extend(self._found(optimizer, weights))
            # Without names: they have numbers, which ranks may count apart.
            return [name for _, name, _ in found], [(array.shape, str(array.dtype)) for _, _, array in found]

        def broadcast(places: list[int]) -> None:
            root = process_set.ranks[0]
            self._training.broadcast_variables([found[at][0] for at in places], root, process_set)

        self.is_compared = same_start.check(
            describe, lambda: same_start.sums_of(array for _, _, array in found), broadcast, CURE, NAME, process_set
        )

    def _found(self, optimizer: Any, weights: Iterable[Any]) -> list[tuple[Any, str, np.ndarray]]:
        """What is compared: variables, what they are called, and their values."""
        local = self._local()
        named = [(v, self._training.name_of(v)) for v in weights if not self._training.is_one_of(v, local)]
        if not local:  # otherwise a part of the state is the rank's own too, and nothing says which
            state = self._training.optimizer_variables(optimizer)
            named += [(v, f"the optimizer's {self._training.name_of(v)}") for v in state]
        arrays = [(v, name, self._training.array_of(v)) for v, name in named]
        return [one for one in arrays if one[2].dtype.itemsize in same_start.ELEMENTS and one[2].dtype != object]


def watch(callback_list: Any, first_step_of: Callable[[Any], FirstStep | None]) -> None:
    """Has fit() compare after its first batch, whatever callbacks it is given.

    Nothing of an optimizer is called between compiled steps, so this stands behind a method of the list that every
    fit() calls; models without a DistributedOptimizer see no difference.

    Args:
        callback_list: the class CallbackList of a Keras.
        first_step_of: an optimizer; None for those that are not distributed.
    """
    plain = callback_list.on_train_batch_end
    if hasattr(plain, "ringreduce_compares"):
        return

    @functools.wraps(plain)
    def on_train_batch_end(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        own = vars(self)  # in Keras 3 `model` is a property, which fetches the whole state from JAX
        model = own.get("_model", own.get("model"))
        first_step = first_step_of(getattr(model, "optimizer", None))
        if first_step is not None:
            first_step.after_batch(model)

    on_train_batch_end.ringreduce_compares = True  # type: ignore[attr-defined]
    callback_list.on_train_batch_end = on_train_batch_end
