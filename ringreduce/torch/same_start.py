"""Whether all ranks start from the same parameters and optimizer state; ranks that do not would drift apart in silence.

Each tensor is summed up as two sums of its bits, which cost one pass over it, on the device where it lies. The sums
travel in one small exchange, in an optimizer's first step.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence

import torch

from ringreduce import agreement, config
from ringreduce._core import Group
from ringreduce.basics import rank
from ringreduce.errors import MismatchError
from ringreduce.ops import Max
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.functions import broadcast_parameters

KNOB = "RINGREDUCE_CHECK_PARAMETERS"
MODES = ("error", "warn", "broadcast", "off")
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: the integers that its bits are."""


def check(named: Sequence[tuple[str, torch.Tensor]], name: str, process_set: ProcessSet) -> bool:
    """Compares tensors over the ranks of a set, and does what the knob says where they differ. Collective.

    Args:
        named: what the step starts from, in the same order on all ranks: parameters first.
        name: of the operations; the same on all ranks.

    Returns:
        False where a rank has joined, so that nothing was compared, and all do it again in the next step.

    Raises:
        MismatchError: the knob is "error"; or "broadcast", and the ranks have other tensors; or it differs.
    """
    mode = config.choice(KNOB)
    dense = [(of, tensor) for of, tensor in named if mode != "off" and _is_plain(tensor)]
    layout = [(of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in dense]
    digest = int.from_bytes(hashlib.sha256(repr(layout).encode()).digest()[:7], "big")
    group = process_set.group
    if not agreement.are_all_here(group, name):
        return False
    same_mode, same_layout = _are_same(group, f"{name}.layout", [MODES.index(mode), digest])
    if not same_mode:
        raise MismatchError(f"{KNOB} is {mode} on rank {rank()}, and not the same on all ranks; set it for all of them")
    if mode == "off":
        return True
    if not same_layout:
        _report("the ranks have state of other parameters, or of another dtype", mode, process_set)
        return True
    sums = _sums([tensor for _, tensor in dense])
    same = _are_same(group, name, [value for pair in sums for value in pair])
    differing = [at for at in range(len(dense)) if not (same[2 * at] and same[2 * at + 1])]
    if differing and mode == "broadcast":
        with torch.no_grad():
            broadcast_parameters([dense[at][1] for at in differing], process_set.ranks[0], process_set)
    elif differing:
        first = dense[differing[0]][0]
        text = f"{first} is not the same on all ranks; {len(differing)} of {len(dense)} tensors differ"
        _report(text, mode, process_set)
    return True


def _are_same(group: Group, name: str, values: Sequence[int]) -> list[bool]:
    """Of each integer, whether all ranks have the same: whether its maximum is its minimum, all in one operation."""
    largest = agreement.combined(group, name, [*values, *(~value for value in values)], Max)
    return [high == ~low for high, low in zip(largest[: len(values)], largest[len(values) :], strict=True)]


def _report(text: str, mode: str, process_set: ProcessSet) -> None:
    """One warning in the job, or an error on all ranks."""
    text = (
        f"DistributedOptimizer, first step: {text}. Before it call hvd.broadcast_parameters(model.state_dict(), "
        f"root_rank=0) and hvd.broadcast_optimizer_state(optimizer, root_rank=0). {KNOB}=broadcast broadcasts what "
        "differs, error makes this an error, off leaves the comparison out"
    )
    if mode != "warn":
        raise MismatchError(text)
    if process_set.group.rank == 0:
        warnings.warn(text, RuntimeWarning, stacklevel=2)


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
