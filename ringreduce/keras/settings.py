"""What DistributedOptimizer is told, with Keras 3 and with Keras 2, and what is wrong with it. Imports neither."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from ringreduce import state
from ringreduce.collectives.ops import Average, Sum
from ringreduce.common.arguments import check_compression, check_predivide
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, registered_as


@dataclass(frozen=True)
class Settings:
    """Arguments of DistributedOptimizer."""

    name: Any  # str; with Keras 3 None leaves it to the order of calls
    compression: Any
    sparse_as_dense: bool
    gradient_predivide_factor: float
    op: int
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    groups: Any  # common.groups.Groups; with Keras 2 what the user gave
    process_set: ProcessSet
    scale_local_gradients: bool


def with_registered_set(settings: Settings) -> Settings:
    """The settings with the job's own process set of the same ranks, if there is one: a pickle has the ranks alone."""
    if state.current is None or settings.process_set.process_set_id is not None:
        return settings
    registered = registered_as(settings.process_set, state.current)
    return settings if registered is None else replace(settings, process_set=registered)


def check(op: int, gradient_predivide_factor: float, compression: Any) -> None:
    """Raises InvalidArgumentError for arguments that make no sense."""
    check_predivide(op, gradient_predivide_factor)
    if op not in (Average, Sum):
        raise InvalidArgumentError("op currently only supports Average and Sum")
    check_compression(compression)


class Variables(Protocol):
    """What training.py and legacy/training.py know of variables, each of its Keras."""

    VARIABLE: str

    def is_variable(self, one: Any) -> bool: ...


def check_variable(training: Variables, one: Any, who: str) -> None:
    """Raises InvalidArgumentError for what is no variable, such as a layer, and cannot be a rank's own.

    Args:
        who: was given it.
    """
    if not training.is_variable(one):
        raise InvalidArgumentError(
            f"{who}: All local variables must be of {training.VARIABLE} type, such as model.weights[0]; this is a "
            f"{type(one).__name__}"
        )


def check_local(optimizer: Any) -> None:
    """Raises InvalidArgumentError for an optimizer of either Keras that mixes local gradients into shared ones."""
    if optimizer.global_clipnorm:
        raise InvalidArgumentError(
            f"global_clipnorm={optimizer.global_clipnorm} with local variables (register_local_var(), local_layers): "
            "each rank would scale all gradients by a norm with its own local ones in it, and the shared weights would "
            "go apart; take clipnorm or clipvalue, which look at each variable by itself"
        )


def layers_of(local_layers: Any, layer: type, name: str) -> list[Any]:
    """The list that local_layers stands for: None, one layer, or several. Raises InvalidArgumentError for others.

    Args:
        layer: the class of Keras's layers.
        name: of that class, for the error.
    """
    layers = [] if local_layers is None else [local_layers] if isinstance(local_layers, layer) else list(local_layers)
    if not all(isinstance(one, layer) for one in layers):
        raise InvalidArgumentError(f"All local layers must be of {name} type.")
    return layers
