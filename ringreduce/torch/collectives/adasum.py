"""op=Adasum: a sum of gradients that adds what is orthogonal and averages what is parallel.

The formula and its order are in ringreduce/common/adasum.py.

Here every rank gathers all N tensors and combines them by itself, so it moves and holds N times the bytes of the
tensor, where an all-reduce of the core moves about twice: meant for a few ranks. The result is rounded once: all ranks
have the same bits, in every run. CUDA tensors are combined by the CPU too, which waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringreduce.collectives.handles import Handle, Works
from ringreduce.common.adasum import check_size, combine
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, group_of
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.profiling import ranged
from ringreduce.torch.submission import allgathers, received
from ringreduce.torch.tensors import refusal, source

_combine = ranged("combine Adasum")(combine)
_CPU = torch.device("cpu")


def submit(
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    name: str | None,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    result: Any,
) -> Handle[Any]:
    """An all-reduce with op=Adasum of each tensor by itself; waiting for the handle writes the outputs.

    Args:
        tensors: floating point, the same shapes and dtypes on all ranks.
        outputs: where the results go, like the tensors or these themselves.
        prescale_factor, postscale_factor: multiply each input, in its dtype, and the result.
        result: what the handle gives.

    Raises:
        InvalidArgumentError: a dtype that is not floating point.
        PowerOfTwoError: the set's number of ranks is no power of two.
        MismatchError: on waiting, when shapes or dtypes differ.
    """
    size = group_of(process_set).size
    check_size(size)
    for tensor in [*tensors, *outputs]:
        if not isinstance(tensor, torch.Tensor):
            raise refusal(tensor)
        if not tensor.is_floating_point():
            raise InvalidArgumentError(f"op=Adasum is for floating-point tensors, not {tensor.type()}")
    scaled = [source(tensor) * prescale_factor if prescale_factor != 1.0 else source(tensor) for tensor in tensors]
    rows = [tensor.unsqueeze(0) for tensor in scaled]

    def finish(works: Works) -> Any:
        for work, row, output in zip(works.each, rows, outputs, strict=True):
            gathered = received(work, row).cpu()
            with computed_alike(_CPU):
                vectors = gathered.double().reshape(size, -1).numpy()
                combined = torch.from_numpy(_combine(list(vectors)) * postscale_factor)
                rounded = combined.view(output.shape).to(output.dtype)
            output.detach().copy_(rounded)
        return result

    return Handle(allgathers(rows, name, process_set), finish)
