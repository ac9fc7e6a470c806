"""op=Adasum: a sum of gradients that adds what is orthogonal and averages what is parallel.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (arXiv 2006.02924). Two vectors combine to

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

and N = 2^k of them in the order of recursive halving: neighbours in pairs, then pairs of pairs, and so on. A zero
vector adds nothing and takes nothing away.

Here every rank gathers all N tensors and combines them by itself, so it moves and holds N times the bytes of the
tensor, where an all-reduce of the core moves about twice: meant for a few ranks. Everything is computed in fp64 in
one fixed order, whatever the number of threads, and rounded once: all ranks have the same bits, in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.handles import Handle, Works
from ringreduce.process_sets import ProcessSet
from ringreduce.torch.submission import allgathers, received
from ringreduce.torch.tensors import refusal, source

Vector: TypeAlias = NDArray[np.float64]

BLOCK = 1 << 16  # elements of a partial dot product: half a megabyte, which stays in the cache


class PowerOfTwoError(UnavailableError, NotImplementedError):
    """op=Adasum on a number of ranks that is no power of two. Horovod raises NotImplementedError."""


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
    size = process_set.group.size
    if size & (size - 1):
        raise PowerOfTwoError(
            f"Running Adasum with non-power of 2 ranks is not supported yet. (The process set has {size} ranks.)"
        )
    for tensor in [*tensors, *outputs]:
        if not isinstance(tensor, torch.Tensor):
            raise refusal(tensor)
        if not tensor.is_floating_point():
            raise InvalidArgumentError(f"op=Adasum is for floating-point tensors, not {tensor.type()}")
    scaled = [source(tensor) * prescale_factor if prescale_factor != 1.0 else source(tensor) for tensor in tensors]
    rows = [tensor.unsqueeze(0) for tensor in scaled]

    def finish(works: Works) -> Any:
        for work, row, output in zip(works.each, rows, outputs, strict=True):
            vectors = received(work, row).double().reshape(size, -1).numpy()
            combined = torch.from_numpy(combine(list(vectors)) * postscale_factor)
            output.detach().copy_(combined.view(output.shape))
        return result

    return Handle(allgathers(rows, name, process_set), finish)


def combine(vectors: list[Vector]) -> Vector:
    """The adasum of 2^k vectors, given in rank order."""
    while len(vectors) > 1:
        vectors = [_pair(vectors[i], vectors[i + 1]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def _pair(a: Vector, b: Vector) -> Vector:
    both, of_a, of_b = _dot(a, b), _dot(a, a), _dot(b, b)
    weight_a = 1.0 - both / (2.0 * of_a) if of_a else 1.0
    weight_b = 1.0 - both / (2.0 * of_b) if of_b else 1.0
    return weight_a * a + weight_b * b


def _dot(a: Vector, b: Vector) -> float:
    """The dot product in one order on every machine: a BLAS's depends on threads and on where the vectors lie."""
    return math.fsum(
        float(np.add.reduce(a[start : start + BLOCK] * b[start : start + BLOCK])) for start in range(0, len(a), BLOCK)
    )
