"""Optimizer state between its two forms: by parameter, as torch has it, and by shard, as a rank keeps it (in pieces).

A shard's state has elements of its own (momenta), in tensors like the shard, and what all of it shares (step counts),
in numbers and tensors without dimensions.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.optimizer.registered_bucket import views
from ringreduce.torch.optimizer.shards import ShardedBucket

State = MutableMapping[Any, dict[str, Any]]


COMMON = frozenset({"step", "eta", "mu", "mu_product"})
"""What torch's optimizers keep once per parameter; names tell it from an element where the parameter has one only."""


def is_common(key: str, value: Any, like: torch.Tensor) -> bool:
    """Whether a value of the state of `like` is common to its elements."""
    return not isinstance(value, torch.Tensor) or key in COMMON or (value.dim() == 0 and like.dim() > 0)


def to_shard(bucket: ShardedBucket, full: State) -> dict[str, Any]:
    """This rank's share of the state of a bucket's parameters.

    Raises:
        InvalidArgumentError: the parameters differ in what a shard has only once, or the state is not elementwise.
    """
    first = bucket.slots[0]
    pattern = full.get(first.parameter, {})
    for slot in bucket.slots[1:]:
        if _commons(full.get(slot.parameter, {}), slot.parameter) != _commons(pattern, first.parameter):
            raise InvalidArgumentError(
                f"the optimizer's state of {first.name} and {slot.name} differs in its keys or step counts; with "
                "shard_step=True the parameters of a group are updated together. Give them groups of their own"
            )
    state: dict[str, Any] = {}
    for key, value in pattern.items():
        if is_common(key, value, first.parameter):
            state[key] = _copy(value)
            continue
        if value.shape != first.parameter.shape:
            raise InvalidArgumentError(
                f"the optimizer's state {key!r} of {first.name} has the shape {list(value.shape)}, and the parameter "
                f"{list(first.parameter.shape)}: shard_step=True needs an elementwise optimizer"
            )
        whole = torch.zeros(bucket.whole.numel(), dtype=value.dtype, device=value.device)
        for slot, place in zip(bucket.slots, views(bucket.slots, whole), strict=True):
            place.copy_(full[slot.parameter][key])
        state[key] = bucket.share_of(whole).clone()
    return state


def to_pieces(bucket: ShardedBucket, state: dict[str, Any]) -> list[dict[str, Any]]:
    """A shard's state as that of its pieces."""
    count = bucket.pieces[0].numel()
    states: list[dict[str, Any]] = [{} for _ in bucket.pieces]
    for key, value in state.items():
        if is_common(key, value, bucket.shard):
            parts = [_copy(value) for _ in bucket.pieces]
        else:
            parts = [part.clone() for part in value.split(count)]
        for one, part in zip(states, parts, strict=True):
            one[key] = part
    return states


def of_pieces(bucket: ShardedBucket, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of a shard from that of its pieces, which are always updated together."""
    return {
        key: value if is_common(key, value, bucket.shard) else torch.cat([state[key] for state in states])
        for key, value in states[0].items()
    }


def to_parameters(bucket: ShardedBucket, state: dict[str, Any]) -> State:
    """The state of each of a bucket's parameters, from the shares of all ranks. Collective."""
    full: State = {slot.parameter: {} for slot in bucket.slots} if state else {}
    for key, value in state.items():
        if is_common(key, value, bucket.shard):
            for slot in bucket.slots:
                full[slot.parameter][key] = _copy(value)
        else:
            whole = bucket.share(value)
            for slot, place in zip(bucket.slots, views(bucket.slots, whole), strict=True):
                full[slot.parameter][key] = place.clone()
    return full


def _commons(state: dict[str, Any], like: torch.Tensor) -> dict[str, Any]:
    """What the state has of each key: the value where it is common, a mark where it has elements."""
    found: dict[str, Any] = {}
    for key, value in state.items():
        if not is_common(key, value, like):
            found[key] = "elements"
        else:
            found[key] = value.item() if isinstance(value, torch.Tensor) else value
    return found


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
