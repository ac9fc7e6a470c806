"""The arithmetic of op=Adasum: a sum of gradients that adds what is orthogonal and averages what is parallel.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (arXiv 2006.02924). Two vectors combine to

    adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b

and N = 2^k of them in the order of recursive halving: neighbours in pairs, then pairs of pairs, and so on. A zero
vector adds nothing and takes nothing away. Everything is computed in fp64 in one fixed order, whatever the number of
threads: all ranks have the same bits, in every run.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ringreduce.errors import UnavailableError

Vector: TypeAlias = NDArray[np.float64]

BLOCK = 1 << 16  # elements of a partial dot product: half a megabyte, which stays in the cache


class PowerOfTwoError(UnavailableError, NotImplementedError):
    """op=Adasum on a number of ranks that is no power of two. Horovod raises NotImplementedError."""


def is_power_of_two(count: int) -> bool:
    """Whether a number of ranks is one that Adasum can do."""
    return count > 0 and count & (count - 1) == 0


def check_size(size: int) -> None:
    """Raises PowerOfTwoError for a number of ranks that Adasum cannot do."""
    if not is_power_of_two(size):
        raise PowerOfTwoError(
            f"Running Adasum with non-power of 2 ranks is not supported yet. (The process set has {size} ranks.)"
        )


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
    partial = [
        float(np.add.reduce(a[start : start + BLOCK] * b[start : start + BLOCK])) for start in range(0, len(a), BLOCK)
    ]
    try:
        return math.fsum(partial)
    except (ValueError, OverflowError):  # infinities of both signs; a sum that is too large
        return sum(partial)
