"""torch's parameters and optimizer state for ringreduce.common.same_start: summed up on the device where they lie."""

from __future__ import annotations

from collections.abc import Sequence

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
) -> bool:
    """ringreduce.common.same_start.check() of tensors: what the step starts from, in the same order on all ranks.

    After a join() what counts is what the rank has that joined last: it has taken all steps.
    """
    root = process_set.ranks[0] if process_set.joined_last is None else process_set.joined_last
    cure = (
        f"Before it call hvd.broadcast_parameters(model.state_dict(), root_rank={root}) and "
        f"hvd.broadcast_optimizer_state(optimizer, root_rank={root})"
    )
    dense = [(of, tensor) for of, tensor in named if _is_plain(tensor)]
    tensors = [tensor for _, tensor in dense]

    def describe() -> tuple[list[str], list[tuple[str, tuple[int, ...], str]]]:
        layout = [(of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in dense]
        return [of for of, _ in dense], layout

    def broadcast(places: list[int]) -> None:
        with torch.no_grad():
            broadcast_parameters([tensors[at] for at in places], root, process_set)

    return same_start.check(describe, lambda: _sums(tensors), broadcast, cure, name, process_set, who)


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
