"""`groups` of optimizers and tapes: which gradients share an operation."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from ringreduce.errors import InvalidArgumentError

Groups: TypeAlias = int | list[list[Any]]
"""A number of operations, 0 for one; or the variables of each, those in none being one operation more."""


def renamed(num_groups: int, groups: Any) -> Any:
    """The groups of a call: num_groups is the name that a number of them had.

    To be called by the function that has the arguments: a deprecation is reported where that is called.
    """
    if not num_groups:
        return groups
    warnings.warn(
        "Parameter `num_groups` has been replaced by `groups` and will be removed", DeprecationWarning, stacklevel=3
    )
    return num_groups if groups is None else groups


def checked(
    groups: int | Sequence[Sequence[Any]] | None,
    members: str,
    one: str = "variable",
    key: Callable[[Any], Hashable] = id,
) -> Groups:
    """The groups that a user asks for, by a number, by lists of variables, or not at all.

    Args:
        members, one: what is in the lists, for texts.
        key: of a variable; equal where two stand for the same one.

    Raises:
        InvalidArgumentError: it is nothing of the kind, or a variable is in it twice.
    """
    if groups is None or (isinstance(groups, int) and groups >= 0):
        return groups or 0
    if not isinstance(groups, Collection) or any(not isinstance(group, (list, tuple)) for group in groups):
        raise InvalidArgumentError(f"groups should be a non-negative integer or a list of list of {members}.")
    keys = [key(variable) for group in groups for variable in group]
    if len(set(keys)) != len(keys):
        raise InvalidArgumentError(f"A {one} can only appear once in groups.")
    return [list(group) for group in groups] or 0


def mark_of(places: Sequence[int], count: int) -> int | None:
    """A number for which of `count` gradients there are; None where there are all.

    Gradients that are None do not travel, and those behind them move up: of equal shapes, one variable's would be added
    to another's where ranks have them at other places. An empty tensor of shape (0, mark) among the others makes that
    a MismatchError.
    """
    if len(places) == count:
        return None
    return zlib.crc32(repr((count, list(places))).encode()) & 0x7FFFFFFF


def buckets(
    places: Sequence[int], groups: Groups, key: Callable[[Any], Hashable], variables: Sequence[Any]
) -> list[list[int]]:
    """The places of each operation's gradients, in order; no operation is empty.

    Args:
        places: those of all gradients that travel, in `variables`.
        groups: what checked() has returned; of a number of operations, lengths differ by one at most.
        key: of a variable; equal where two stand for the same one.
    """
    if isinstance(groups, int):
        count = max(1, min(groups, len(places)))
        length, longer = divmod(len(places), count)
        ends = [part * length + min(part, longer) for part in range(count + 1)]
        parts = [list(places[start:end]) for start, end in pairwise(ends)]
    else:
        number = {key(variable): at for at, group in enumerate(groups) for variable in group}
        parts = [[] for _ in range(len(groups) + 1)]
        for place in places:
            parts[number.get(key(variables[place]), len(groups))].append(place)
    return [part for part in parts if part]
