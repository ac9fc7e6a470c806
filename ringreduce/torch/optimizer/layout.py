"""The layout of an optimizer's gradients: which share a bucket, and in what the ranks' layouts differ.

plan() is arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import torch

from ringreduce import config
from ringreduce.torch.optimizer.buckets import Slot
from ringreduce.torch.optimizer.registered_bucket import strides_of

Agreed: TypeAlias = tuple[list[str], list[list[int]], str]
"""What the ranks compare: what describe() says of each slot, the slots of each bucket, and the settings."""

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


def difference(layouts: Sequence[Agreed]) -> str:
    """Which ranks differ from rank 0, and where first."""
    ours, buckets, settings = layouts[0]
    for rank, (theirs, their_buckets, their_settings) in enumerate(layouts):
        where = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        if where is not None:
            what, cure = "different parameters", ""
            if sorted(map(_without_number, ours)) == sorted(map(_without_number, theirs)):
                what = "the same parameters in another order"
                cure = ". Pass them in the same order on all ranks, such as sorted by name"
            return (
                f"Mismatched DistributedOptimizer: the ranks have {what} (in reverse order, number {where}: "
                f"rank 0 has {ours[where]}, but rank {rank} has {theirs[where]}){cure}"
            )
        if len(ours) != len(theirs):
            return (
                f"Mismatched DistributedOptimizer: rank 0 has {len(ours)} parameters, but rank {rank} has {len(theirs)}"
            )
        if (buckets, settings) != (their_buckets, their_settings):
            return (
                "Mismatched DistributedOptimizer: the ranks have different groups or settings: rank 0 has "
                f"{len(buckets)} buckets, {settings}, but rank {rank} has {len(their_buckets)}, {their_settings}"
            )
    raise AssertionError("the layouts are equal")


def _without_number(line: str) -> str:
    """What describe() says, without the name that a parameter without one has by its place."""
    return re.sub(r"^allreduce\.noname\.\S+", "", line)
