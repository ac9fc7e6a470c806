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
from ringreduce.errors import MismatchError
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.functions import broadcast_parameters

KNOB = "RINGREDUCE_CHECK_PARAMETERS"
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the bytes of an element: the integers that its bits are."""


def check(named: Sequence[tuple[str, torch.Tensor]], name: str, process_set: ProcessSet) -> None:
    """Compares tensors over the ranks of a set, and does what the knob says where they differ. Collective.

    Args:
        named: what the step starts from, in the same order on all ranks: parameters first.
        name: of the exchange; the same on all ranks.

    Raises:
        MismatchError: the knob is "error"; or "broadcast", and the ranks have other tensors; or it differs.
    """
    mode = config.choice(KNOB)
    if mode == "off":
        offers = agreement.exchange(process_set.group, name, [mode, "", []])
        return _check_modes([offer[0] for offer in offers])
    dense = [(of, tensor) for of, tensor in named if tensor.layout is torch.strided and tensor.itemsize in BITS]
    layout = [(of, tuple(tensor.shape), str(tensor.dtype)) for of, tensor in dense]
    mine = [mode, hashlib.sha256(repr(layout).encode()).hexdigest(), _sums([tensor for _, tensor in dense])]
    offers = agreement.exchange(process_set.group, name, mine)
    _check_modes([offer[0] for offer in offers])
    root = process_set.ranks[0]
    if any(offer[1] != mine[1] for offer in offers):
        return _report("the ranks have state of other parameters, or of another dtype", mode, process_set)
    columns = zip(*(offer[2] for offer in offers), strict=True)
    differing = [at for at, sums in enumerate(columns) if any(other != sums[0] for other in sums)]
    if not differing:
        return None
    if mode == "broadcast":
        with torch.no_grad():
            return broadcast_parameters([dense[at][1] for at in differing], root, process_set)
    at = differing[0]
    others = [rank for rank, offer in zip(process_set.ranks, offers, strict=True) if offer[2][at] != offers[0][2][at]]
    text = (
        f"{dense[at][0]} is not the same on rank {root} and on rank{'s' * (len(others) > 1)} "
        f"{', '.join(map(str, others))}; {len(differing)} of {len(dense)} tensors differ"
    )
    return _report(text, mode, process_set)


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


def _check_modes(modes: Sequence[str]) -> None:
    if len(set(modes)) > 1:
        raise MismatchError(f"{KNOB} differs between the ranks: {', '.join(modes)}; set it for all of them")


def _sums(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Two sums of each tensor's bits: of all elements, and of every third."""
    pairs = []
    with torch.no_grad():
        for tensor in tensors:
            bits = tensor.detach().contiguous().view(-1).view(BITS[tensor.itemsize])
            pairs.append(torch.stack([bits.sum(dtype=torch.int64), bits[::3].sum(dtype=torch.int64)]))
        devices = {pair.device for pair in pairs}
        if len(devices) == 1:  # one transfer from a GPU, not one for each tensor
            together: list[list[int]] = torch.stack(pairs).tolist()
            return together
        return [pair.tolist() for pair in pairs]
