"""The layout of an optimizer's gradients: which share a bucket, and in what the ranks' layouts differ.

plan() is arithmetic.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from ringreduce import config
from ringreduce.torch.optimizer.buckets import Slot
from ringreduce.torch.optimizer.registered_bucket import strides_of

BUCKET_NBYTES = 32 << 20
"""A bucket is closed before it would exceed this, so that on ranks with cores to spare the first ones travel while
later gradients are still being computed. One larger gradient is a bucket of its own. RINGREDUCE_FUSION_THRESHOLD, whose
default is for operations that somebody waits for all at once, takes its place where it is set."""


def limit() -> int:
    """The bytes that a bucket of several gradients has at most."""
    knob = config.value("RINGREDUCE_FUSION_THRESHOLD")
    return BUCKET_NBYTES if knob.origin == "default" else int(float(knob.value))


def plan(nbytes: Sequence[int], kinds: Sequence[Hashable], limit: int) -> list[list[int]]:
    """Deals tensors out to buckets, in order: each bucket has tensors of one kind, and at most limit bytes if several.

    Args:
        nbytes: bytes of each tensor, in the order in which they become ready.
        kinds: what must be equal within a bucket (dtype, group).

    Returns:
        The indices of each bucket's tensors, ascending; the buckets in the order in which they become complete.
    """
    buckets: list[list[int]] = []
    current: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}
    for index, (count, kind) in enumerate(zip(nbytes, kinds, strict=True)):
        if kind not in current or filled[kind] + count > limit:
            current[kind] = []
            filled[kind] = 0
            buckets.append(current[kind])
        current[kind].append(index)
        filled[kind] += count
    return sorted(buckets, key=lambda bucket: bucket[-1])


def group(slots: Sequence[Slot], groups: list[list[torch.Tensor]] | int, limit: int) -> list[list[Slot]]:
    """The slots of each bucket: the user's groups, and buckets of at most limit bytes of the others."""
    if isinstance(groups, int):
        chosen = (
            {id(slot.parameter): index * groups // len(slots) for index, slot in enumerate(slots)} if groups else {}
        )
    else:
        chosen = {id(parameter): index for index, group in enumerate(groups) for parameter in group}
    nbytes = [slot.parameter.numel() * slot.parameter.dtype.itemsize for slot in slots]
    deals: list[list[int]] = []
    for grouped in (True, False):
        members = [index for index, slot in enumerate(slots) if (id(slot.parameter) in chosen) is grouped]
        kinds = [(*_kind(slots[i]), chosen.get(id(slots[i].parameter))) for i in members]
        deals += [
            [members[i] for i in deal]
            for deal in plan([nbytes[i] for i in members], kinds, sum(nbytes) if grouped else limit)
        ]
    return [[slots[i] for i in deal] for deal in sorted(deals, key=lambda deal: deal[-1])]


def _kind(slot: Slot) -> tuple[Hashable, ...]:
    """What slots that share a bucket have in common."""
    return (slot.parameter.dtype, slot.parameter.device, slot.section)


def describe(slot: Slot) -> str:
    """What must agree between the ranks."""
    parameter = slot.parameter
    dtype = str(parameter.dtype).removeprefix("torch.")
    where = " on a GPU" if parameter.is_cuda else ""
    return f"{slot.name} {dtype} {list(parameter.shape)} strides {list(strides_of(parameter))}{where}"


def difference(layouts: Sequence[Any]) -> str:
    """Which ranks differ from rank 0, and where first."""
    for rank, theirs in enumerate(layouts):
        if theirs == layouts[0]:
            continue
        ours, them = ([line for slots in layout[0] for line in slots] for layout in (layouts[0], theirs))
        where = next((i for i, pair in enumerate(zip(ours, them, strict=False)) if pair[0] != pair[1]), None)
        if where is not None:
            return (
                "Mismatched DistributedOptimizer: the ranks have different parameters (in reverse order, number "
                f"{where}: rank 0 has {ours[where]}, but rank {rank} has {them[where]})"
            )
        if len(ours) != len(them):
            return (
                f"Mismatched DistributedOptimizer: rank 0 has {len(ours)} parameters, but rank {rank} has {len(them)}"
            )
        return (
            "Mismatched DistributedOptimizer: the ranks have different groups or settings: rank 0 has "
            f"{len(layouts[0][0])} buckets, {layouts[0][1]}, but rank {rank} has {len(theirs[0])}, {theirs[1]}"
        )
    raise AssertionError("the layouts are equal")
