"""How a class of ours comes before the class of the user's optimizer."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, group_of
from ringreduce.torch.tensors import lacks_memory


def check_optimizer(optimizer: Any, who: str, text: str) -> None:
    """Raises InvalidArgumentError for what is no optimizer, and with the text for one that with_mixin() has made.

    Args:
        who: was given it.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"{who}: optimizer is a torch.optim.Optimizer, such as torch.optim.SGD(model.parameters(), lr=0.1), and "
            f"not a {type(optimizer).__name__}"
        )
    if hasattr(type(optimizer), "_plain"):
        raise InvalidArgumentError(text)


def check_memory(named: Iterable[tuple[str, torch.Tensor]], process_set: ProcessSet) -> None:
    """Raises InvalidArgumentError for a DTensor, whose gradient is one and has no memory of its own.

    A single rank reduces nothing, and may have it. Gradients of other wrappers, as of quantized weights, are plain
    tensors, or are refused when they come.
    """
    group_of(process_set)  # raises for what is no process set
    if not process_set.included() or process_set.size() == 1:
        return
    for name, parameter in named:
        if parameter.requires_grad and hasattr(parameter, "to_local") and lacks_memory(parameter):
            raise InvalidArgumentError(
                f"DistributedOptimizer: {name} is a {type(parameter).__name__} without memory of its own, and so will "
                "its gradient be. Parameters that FSDP2 or DTensor shards have their gradients reduced already: use "
                "the plain optimizer for them, and DistributedOptimizer for plain tensors"
            )


def check_gradient_dtypes(named: Iterable[tuple[str, torch.nn.Parameter, int]]) -> None:
    """Raises InvalidArgumentError for a gradient that a bucket of its parameter's dtype would round.

    Torch 2.13 lets a gradient have another dtype than its parameter (`grad_dtype`).
    """
    for name, parameter, _ in named:
        gradient_dtype = getattr(parameter, "grad_dtype", parameter.dtype)
        if gradient_dtype != parameter.dtype:
            raise InvalidArgumentError(
                f"DistributedOptimizer: {name} is {parameter.dtype} and its grad_dtype is {gradient_dtype}; gradients "
                "are reduced in their parameters' dtype: leave grad_dtype as it is, or keep the parameter itself in "
                "the wider dtype and compute under torch.autocast"
            )


class ParameterWatch:
    """Finds parameters that somebody has put into an optimizer's groups by hand."""

    def __init__(self) -> None:
        self._known: list[torch.nn.Parameter] = []  # in the groups, when all of them were last found to have names

    def check(self, groups: list[dict[str, Any]], names: Mapping[torch.nn.Parameter, str]) -> None:
        """Raises InvalidArgumentError for a parameter that we gave no name: no hook reduces its gradient.

        Before each step: 15 us for 500 parameters where nothing has changed.
        """
        found = list(chain.from_iterable(group["params"] for group in groups))
        if len(found) == len(self._known) and all(map(operator.is_, found, self._known)):
            return
        for section, group in enumerate(groups):
            for i, parameter in enumerate(group["params"]):
                if parameter not in names:
                    raise InvalidArgumentError(
                        f"DistributedOptimizer: parameter {i} of param_groups[{section}], of shape "
                        f"{list(parameter.shape)}, was put there by hand, so its gradient is this rank's alone: use "
                        "add_param_group(), on all ranks, or make a DistributedOptimizer of an optimizer that has it"
                    )
        self._known = found


def with_mixin(optimizer: torch.optim.Optimizer, mixin: type[torch.optim.Optimizer]) -> Any:
    """The optimizer with its state, in a class of the mixin and its own class, which `_plain` names."""
    plain = type(optimizer)
    made: Any = type(plain.__name__, (mixin, plain), {"_plain": plain})

    @functools.wraps(plain.zero_grad)  # whose signature tells callers, as Accelerate, whether it takes set_to_none
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        super(made, self).zero_grad(*args, **kwargs)

    made.zero_grad = zero_grad
    wrapped: Any = object.__new__(made)
    # A scheduler made before leaves a step() in the instance, bound to the plain optimizer.
    wrapped.__dict__.update((key, value) for key, value in vars(optimizer).items() if key != "step")
    vars(optimizer)["_opt_called"] = True  # it does not step from now on, and such a scheduler would warn of that
    return wrapped


@contextmanager
def same_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it load_state_dict() may replace the parameter groups; then they are the former ones with new contents.

    A scheduler that was made of the plain optimizer shares them.
    """
    groups = optimizer.param_groups
    yield
    loaded = optimizer.param_groups
    for group, new in zip(groups, loaded, strict=False):
        contents = dict(new)
        group.clear()
        group.update(contents)
    groups[len(groups) :] = loaded[len(groups) :]  # what a hook has added
    loaded[:] = groups  # an optimizer within this one may have that list
    optimizer.param_groups = groups
