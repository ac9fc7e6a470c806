"""A process set as a collective with a gradient has it, and the two ways that such a collective may go.

Where Python calls, it is a ProcessSet, and the collective a torch.autograd.Function. In a graph of torch.compile it is
the set's place, an int, and the collective an operator of library.py. The int holds the number of ranks and which one
this is besides the set's id: inductor keeps compiled graphs on disk by the arguments of their operators, and shapes
depend on all three.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.autograd import forward_ad

from ringreduce import state
from ringreduce.job.process_sets import ID_MASK, ProcessSet, global_process_set, no_process_set
from ringreduce.torch.tensors import has_tangent

Members: TypeAlias = ProcessSet | int

NOWHERE = ProcessSet([])  # raises what any set raises that is not registered


def place_of(process_set: ProcessSet) -> int:
    """The process set as a graph of torch.compile has it."""
    return process_set.place


def process_set_of(members: Members) -> ProcessSet:
    """The process set itself; one that raises InvalidArgumentError on use if there is none of that id any more."""
    if isinstance(members, ProcessSet):
        return members
    if not isinstance(members, int):
        raise no_process_set(members)
    process_set_id = members & ID_MASK
    return state.require().process_sets.get(process_set_id, NOWHERE) if process_set_id else global_process_set


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """function.apply, for which torch has no types.

    Where one tensor is dual, all are made so: ranks that differ in which tensors of a group have tangents do the same.
    """
    if forward_ad._current_level >= 0 and any(map(_has_tangent, arguments)):
        arguments = tuple(map(_dual, arguments))
    return function.apply(*arguments)  # type: ignore[no-untyped-call]


def _has_tangent(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor) and has_tangent(argument)


def _dual(argument: Any) -> Any:
    """A tensor that can have a tangent and has none, with one of zeros."""
    can = isinstance(argument, torch.Tensor) and (argument.is_floating_point() or argument.is_complex())
    if not can or has_tangent(argument):
        return argument
    return forward_ad.make_dual(argument, torch.zeros_like(argument))  # type: ignore[no-untyped-call]


def run(operator: str, function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """The function, or the operator made of it where the last argument is the id of a process set."""
    if isinstance(arguments[-1], int):
        return getattr(torch.ops.ringreduce, operator)(*arguments)
    return call(function, *arguments)
