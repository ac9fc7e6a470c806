"""torch's parameters and optimizer state for ringreduce.common.same_start: summed up on the device where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.common import same_start
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.functions import broadcast_parameters

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: the integers that its bits are."""


def check(
    named: Sequence[tuple[str, torch.Tensor]],
    name: str,
    process_set: ProcessSet,
    who: str = same_start.OPTIMIZER,
    groups: Sequence[dict[str, Any]] = (),
) -> bool:
    """ringreduce.common.same_start.check() of tensors: what the step starts from, in the same order on all ranks.

    groups: an optimizer's param_groups, whose options count too: the learning rate and other numbers.
    After a join() what counts is what the rank has that joined last: it has taken all steps.
    """
    root = process_set.ranks[0] if process_set.joined_last is None else process_set.joined_last
    cure = (
        f"Before it call hvd.broadcast_parameters(model.state_dict(), root_rank={root}) and "
        f"hvd.broadcast_optimizer_state(optimizer, root_rank={root})"
    )
    options = [Options(at, group) for at, group in enumerate(groups)]
    dense = [(of, tensor) for of, tensor in named if _is_plain(tensor)]
    dense += [item for one in options for item in one.named()]
    tensors = [tensor for _, tensor in dense]

    def describe() -> tuple[list[str], list[tuple[str, tuple[int, ...], str]]]:
        layout = [(of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in dense]
        return [of for of, _ in dense], layout

    def broadcast(places: list[int]) -> None:
        with torch.no_grad():
            broadcast_parameters([tensors[at] for at in places], root, process_set)
        for one in options:
            one.take_over()

    return same_start.check(describe, lambda: _sums(tensors), broadcast, cure, name, process_set, who)


class Options:
    """The options of a parameter group that are numbers, tuples of numbers, or tensors.

    Args:
        at: the group's place in param_groups.
        group: the group.
    """

    def __init__(self, at: int, group: dict[str, Any]) -> None:
        self._group = group
        self._at = at
        self._keys = sorted(key for key, value in group.items() if key != "params" and _numbers(value))
        values = [float(number) for key in self._keys for number in _numbers(group[key])]
        self._values = torch.tensor(values, dtype=torch.float64, device="cpu")

    def named(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors to compare: one of all numbers, and the group's own."""
        own = [(key, value) for key, value in self._group.items() if isinstance(value, torch.Tensor)]
        tensors = [(f"{key} of parameter group {self._at}", value) for key, value in own if _is_plain(value)]
        if self._keys:
            tensors.append((f"an option ({', '.join(self._keys)}) of parameter group {self._at}", self._values))
        return tensors

    def take_over(self) -> None:
        """Writes to the group what has been broadcast to the tensor of numbers."""
        values = iter(self._values.tolist())
        for key in self._keys:
            given = self._group[key]
            numbers = [_as_given(number, next(values)) for number in _numbers(given)]
            self._group[key] = type(given)(numbers) if isinstance(given, tuple | list) else numbers[0]


def _as_given(number: float, value: float) -> float:
    """The value, an int where the number was one: torch's default of many an option is the int 0."""
    return int(value) if isinstance(number, int) and value.is_integer() else value


def _numbers(value: Any) -> Sequence[Any]:
    """The numbers that an option is; empty where it is something else, such as a switch."""
    several = value if isinstance(value, tuple | list) else [value]
    return several if all(isinstance(one, int | float) and not isinstance(one, bool) for one in several) else []


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bits are its values: subclasses, such as quantized ones, may have others."""
    is_dense = tensor.layout is torch.strided and tensor.itemsize in BITS
    return is_dense and type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_quantized


def _sums(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Two sums of each tensor's bits: of all elements, and of every third."""
    pairs = []
    with torch.no_grad():
        for tensor in tensors:
            bits = tensor.detach().contiguous().view(-1).view(BITS[tensor.itemsize])
            pairs.append(torch.stack([bits.sum(dtype=torch.int64), bits[::3].sum(dtype=torch.int64)]))
        if not pairs:
            return []
        devices = {pair.device for pair in pairs}
        if len(devices) == 1:  # one transfer from a GPU, not one for each tensor
            together: list[list[int]] = torch.stack(pairs).tolist()
            return together
        return [pair.tolist() for pair in pairs]
