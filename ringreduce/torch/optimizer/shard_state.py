"""Optimizer state between its two forms: by parameter, as torch has it, and by shard, as a rank keeps it (in pieces).

A shard's state has elements of its own (momenta), in tensors like the shard, and what all of it shares (step counts),
in numbers and tensors without dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NoReturn

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.optimizer.registered_bucket import views
from ringreduce.torch.optimizer.shards import ShardedBucket

State = MutableMapping[Any, dict[str, Any]]


COMMON = frozenset({"step", "eta", "mu", "mu_product"})
"""What torch's optimizers keep once per parameter; names tell it from an element where the parameter has one only."""


class StateInShards(dict[Any, dict[str, Any]]):
    """What optimizer.state is where the ranks keep the state in shards.

    It has the state that is whole: of frozen parameters, and what was loaded since the last step(). It is true where
    only the shards have state, because torch.distributed.checkpoint has an optimizer take a step whose state is false:
    it seems never to have stepped.

    Args:
        whole: the state that is whole.
        pieces: the state by piece, in which this rank's shards are.
        reducers: have the shards. Both are the optimizer's own, and change.
    """

    def __init__(self, whole: State, pieces: State, reducers: list[Any]) -> None:
        super().__init__(whole)
        self._pieces = pieces
        self._reducers = reducers

    def __bool__(self) -> bool:
        return len(self) > 0 or len(self._pieces) > 0

    def __missing__(self, parameter: Any) -> Any:
        for bucket in (bucket for reducer in self._reducers for bucket in reducer.shards):
            state = self._pieces.get(bucket.pieces[0])
            if state and any(slot.parameter is parameter for slot in bucket.slots):
                return Names(state)
        self[parameter] = state = {}  # as torch's defaultdict
        return state

    def __reduce__(self) -> Any:
        """A copy has what is whole."""
        return dict, (dict(self),)


class Names(Mapping[str, Any]):
    """The keys of a parameter's state that is in shards, which torch.distributed.checkpoint asks for when it loads."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __getitem__(self, key: str) -> NoReturn:
        raise InvalidArgumentError(
            f"the optimizer's state {key!r} of a parameter lies in the shares of all ranks (shard_step=True): call "
            "optimizer.state_dict(), on all ranks, which gathers it"
        )


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
