"""Which reducer has its hooks on a parameter: one at a time, the newest.

With two, one would reduce in place what the other has reduced. An older DistributedOptimizer lives on where something
holds it, such as a scheduler, and always while `optimizer = DistributedOptimizer(...)` makes the next one.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from ringreduce.torch.optimizer.buckets import Slot

_owners: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By the parameter's id, which is no other's while the reducer lives: it has the parameter."""


def older(slots: Sequence[Slot]) -> list[Any]:
    """The reducers that have these parameters now."""
    found = {id(owner): owner for owner in (_owners.get(id(slot.parameter)) for slot in slots) if owner is not None}
    return list(found.values())


def are_busy(slots: Sequence[Slot]) -> bool:
    """Whether one of them has gradients under way that no step() has used."""
    if not any(owner.is_busy for owner in older(slots)):
        return False
    gc.collect()  # a scheduler and its optimizer hold each other
    return any(owner.is_busy for owner in older(slots))


def take_over(slots: Sequence[Slot], reducer: Any) -> None:
    """Detaches those that have these parameters; the reducer has them now."""
    for owner in older(slots):
        owner.detach()
    _owners.update((id(slot.parameter), reducer) for slot in slots)


def busy(ranks: Sequence[int]) -> AssertionError:
    """What to raise on all ranks where one of them, on some ranks, is busy."""
    return AssertionError(
        f"rank {', '.join(map(str, ranks))} has gradients that no step() has used yet and that another "
        "DistributedOptimizer reduces: call its step() or synchronize() before on all ranks, or delete an older "
        "DistributedOptimizer of the same parameters before backward()"
    )
