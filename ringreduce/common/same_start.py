"""Whether all ranks start from the same parameters and optimizer state; ranks that do not would drift apart in silence.

Each tensor is summed up as two sums of its bits, which cost one pass over it. The sums travel in one small exchange, in
or after an optimizer's first step. Frameworks say what they compare, how it is summed up and how it is broadcast.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ringreduce import config
from ringreduce._core import Group
from ringreduce.basics import rank
from ringreduce.collectives.data_movement import broadcast as broadcast_array
from ringreduce.collectives.ops import Max
from ringreduce.errors import MismatchError
from ringreduce.job import collective_json
from ringreduce.job.process_sets import ProcessSet

KNOB = "RINGREDUCE_CHECK_PARAMETERS"
OPTIMIZER = "DistributedOptimizer"
MODES = ("error", "warn", "broadcast", "off")
ELEMENTS = (1, 2, 4, 8)
"""The bytes of elements whose bits can be summed up as integers."""


def check(
    describe: Callable[[], tuple[Sequence[str], Sequence[Any]]],
    sums: Callable[[], Sequence[Sequence[int]]],
    broadcast: Callable[[list[int]], None],
    cure: str,
    name: str,
    process_set: ProcessSet,
    who: str = OPTIMIZER,
) -> bool:
    """Compares tensors over the ranks of a set, and does what the knob says where they differ. Collective.

    Args:
        describe: gives the tensors' names, for the report, those first that a user has to see first; and of each what
            has to be the same on all ranks before values are compared: shape, dtype. Not called where nothing is
            compared.
        sums: gives two integers (64 bits) of each tensor; called only where they are needed.
        broadcast: sends the tensors at these places from the lowest rank of the set to the others. Collective.
        cure: what the user should have called.
        name: of the operations; the same on all ranks.
        who: compares, for the report.

    Returns:
        False where a rank has joined, so that nothing was compared, and all do it again in the next step.

    Raises:
        MismatchError: the knob is "error"; or "broadcast", and the ranks have other tensors; or it differs.
    """
    group = process_set.group
    if not collective_json.has_nobody_joined(group, name):
        return False
    mode = config.choice(KNOB)
    names, layout = ((), ()) if mode == "off" else describe()
    digest = int.from_bytes(hashlib.sha256(repr(list(layout)).encode()).digest()[:7], "big")
    same_mode, same_layout = _are_same(group, f"{name}.layout", [MODES.index(mode), digest])
    if not same_mode:
        raise MismatchError(f"{KNOB} is {mode} on rank {rank()}, and not the same on all ranks; set it for all of them")
    if mode == "off":
        return True
    if not same_layout:
        _report("the ranks have state of other parameters, or of another dtype", mode, cure, process_set, who)
        return True
    same = _are_same(group, name, [value for pair in sums() for value in pair])
    differing = [at for at in range(len(names)) if not (same[2 * at] and same[2 * at + 1])]
    if differing and mode == "broadcast":
        broadcast(differing)
    elif differing:
        first = names[differing[0]]
        text = f"{first} is not the same on all ranks; {len(differing)} of {len(names)} tensors differ"
        _report(text, mode, cure, process_set, who)
    return True


def number_mark(call: str, count: int) -> tuple[tuple[int, int], str]:
    """The shape of a tensor without elements, and the name of its broadcast, which goes first and alone.

    Tensors are broadcast in the order of calls: where ranks give a call other numbers of them, one's last tensors would
    meet the first ones of the others' next call, and overwrite them. The broadcast of this shape is a MismatchError
    then, before anything else travels.
    """
    return (0, count), f"{call}: the ranks give other numbers of tensors; build model and optimizer on all ranks first"


def check_number(call: str, count: int, root_rank: int, process_set: ProcessSet) -> None:
    """Raises MismatchError where the ranks give a call other numbers of tensors. Collective."""
    shape, name = number_mark(call, count)
    broadcast_array(np.zeros(shape, np.uint8), root_rank, name=name, process_set=process_set)


def sums_of(arrays: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """Two sums of each array's bits: of all elements, and of every third. Elements have 1, 2, 4 or 8 bytes."""
    pairs = []
    for array in arrays:
        bits = np.ascontiguousarray(array).reshape(-1).view(f"i{array.dtype.itemsize}")
        pairs.append((int(bits.sum(dtype=np.int64)), int(bits[::3].sum(dtype=np.int64))))
    return pairs


def report_around(text: Any, cure: str, join: Callable[[list[Any]], Any], who: str = OPTIMIZER) -> Any:
    """The report of what differs. join: of strings, or of a framework's tensors of strings, as `text` is one."""
    advice = f"{KNOB}=broadcast broadcasts what differs, error makes this an error, off leaves the comparison out"
    return join([f"{who}, first step: ", text, f". {cure}. {advice}"])


def _are_same(group: Group, name: str, values: Sequence[int]) -> list[bool]:
    """Of each integer, whether all ranks have the same: whether its maximum is its minimum, all in one operation."""
    largest = collective_json.allreduce_integers(group, name, [*values, *(~value for value in values)], Max)
    return [high == ~low for high, low in zip(largest[: len(values)], largest[len(values) :], strict=True)]


def are_on_all_ranks(process_set: ProcessSet, name: str, values: Sequence[int]) -> bool:
    """Whether no rank has joined and all have these integers (64 bits). Collective over the set.

    Exact for any number of ranks, which a comparison with the Average is not: the mean of 49 equal numbers is rounded.
    """
    group = process_set.group
    return collective_json.has_nobody_joined(group, name) and all(_are_same(group, name, values))


def _report(text: str, mode: str, cure: str, process_set: ProcessSet, who: str) -> None:
    """One warning in the job, or an error on all ranks."""
    text = report_around(text, cure, "".join, who)
    if mode != "warn":
        raise MismatchError(text)
    if process_set.group.rank == 0:
        warnings.warn(text, RuntimeWarning, stacklevel=config.users_level())
