"""What the collectives must give, computed apart from the package under test.

Inputs are a function of (seed, rank, count, dtype), so every rank knows every other rank's input. Expected values come
from NumPy in wider arithmetic: long double for float64, float64 for the smaller floats, 64-bit modular or Python
integers for integers. The bound on floating-point results is (N - 1) eps sum|x|, plus one eps for each scaling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = [*FLOATS, *INTEGERS, "bool"]

AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT, LOGICAL_AND, LOGICAL_OR, BITWISE_AND, BITWISE_OR = range(10)
OPS = [AVERAGE, SUM, MIN, MAX, PRODUCT, LOGICAL_AND, LOGICAL_OR, BITWISE_AND, BITWISE_OR]

Array = np.ndarray[Any, np.dtype[Any]]


def dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name, ml_dtypes' bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def meaningful(name: str, op: int) -> bool:
    """The written table: which operation means something for which dtype."""
    if name == "bool":
        return op not in (AVERAGE, ADASUM)
    return op != ADASUM and (op <= PRODUCT or name in INTEGERS)


def scalable(name: str, op: int) -> bool:
    """Whether scale factors mean something for the pair."""
    return name != "bool" and op <= PRODUCT


def values(seed: int, rank: int, count: int, name: str, op: int = SUM) -> Array:
    """The input of one rank: `count` elements that differ by rank and by position."""
    rng = np.random.default_rng([seed, rank, count, DTYPES.index(name)])
    if name == "bool":
        return rng.random(count) < (0.8 if op in (MIN, PRODUCT, LOGICAL_AND, BITWISE_AND) else 0.2)
    if name in FLOATS:
        low, high = (0.5, 1.5) if op == PRODUCT else (-2.0, 2.0)
        return rng.uniform(low, high, count).astype(dtype(name))
    info = np.iinfo(name)
    low, high = int(info.min), int(info.max)
    if op == AVERAGE:  # sums of 8 ranks that 64 bits and a double hold exactly
        low, high = max(low, -(2**48)), min(high, 2**48)
    if op in (LOGICAL_AND, LOGICAL_OR):
        low, high = (0, 1) if op == LOGICAL_OR else (0, 3)
    return rng.integers(low, high, count, dtype=name, endpoint=True)


def scalable_values(seed: int, rank: int, count: int, name: str, op: int) -> Array:
    """values(), small enough that scaled integers are exact in a double and do not wrap around before the scaling."""
    array = values(seed, rank, count, name, op)
    return array % np.array(8, array.dtype) if name in INTEGERS else array


def reduced(inputs: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0) -> tuple[Array, Array]:
    """(expected, bound): the reduction of the ranks' inputs, and how far each element of a result may be from it."""
    name = inputs[0].dtype.name
    if name == "bool":
        return _reduced_bool(inputs, op), np.zeros(inputs[0].shape)
    if name in FLOATS:
        return _reduced_float(inputs, op, prescale, postscale)
    return _reduced_integer(inputs, op, prescale, postscale), np.zeros(inputs[0].shape)


def wrong(result: Array, inputs: Sequence[Array], op: int, prescale: float = 1.0, postscale: float = 1.0) -> str:
    """What is wrong with a result; empty when it is right."""
    if result.dtype != inputs[0].dtype or result.shape != inputs[0].shape:
        return f"{result.dtype} {result.shape} instead of {inputs[0].dtype} {inputs[0].shape}"
    expected, bound = reduced(inputs, op, prescale, postscale)
    if result.dtype.name in FLOATS:
        with np.errstate(invalid="ignore"):
            off = np.abs(result.astype(expected.dtype) - expected)
        bad = ~((off <= bound) | (np.isnan(expected) & np.isnan(result)) | (result == expected))
    else:
        bad = result != expected
    if not bad.any():
        return ""
    first = tuple(int(index[0]) for index in np.nonzero(np.atleast_1d(bad)))
    got, want = np.atleast_1d(result)[first], np.atleast_1d(expected)[first]
    return f"{int(bad.sum())} of {result.size} wrong; first at {first}: {got!r} instead of {want!r}"


def digest(array: Array) -> str:
    """A hash of the bits, to compare between ranks and runs."""
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()


def rows(dim0: int, rank: int, size: int) -> slice:
    """The rows that reducescatter leaves with a rank: the first dim0 % size ranks have one more."""
    base, extra = divmod(dim0, size)
    start = rank * base + min(rank, extra)
    return slice(start, start + base + (rank < extra))


def counts(size: int) -> list[int]:
    """Element counts worth trying with that many ranks: none, one, around the size, primes, around a page."""
    return sorted({0, 1, size - 1, size, size + 1, 7, 13, 127, 1009, 4097, 65_537})


def _reduced_bool(inputs: Sequence[Array], op: int) -> Array:
    stack = np.stack(inputs)
    return stack.all(axis=0) if op in (MIN, PRODUCT, LOGICAL_AND, BITWISE_AND) else stack.any(axis=0)


def _reduced_float(inputs: Sequence[Array], op: int, prescale: float, postscale: float) -> tuple[Array, Array]:
    narrow = inputs[0].dtype
    wide = np.longdouble if narrow == np.float64 else np.float64
    stack = np.stack([array.astype(wide) for array in inputs]) * wide(prescale)
    size = len(inputs)
    info: Any = ml_dtypes.finfo(narrow)
    eps, tiny = wide(info.eps), wide(info.smallest_subnormal)
    scalings = (op == AVERAGE) + 2 * (prescale != 1.0) + 2 * (postscale != 1.0)
    if op in (SUM, AVERAGE):
        factor = wide(postscale) / (size if op == AVERAGE else 1)
        return stack.sum(axis=0) * factor, (
            (size - 1 + scalings) * eps * np.abs(stack).sum(axis=0) * abs(factor) + tiny * scalings
        )
    if op == PRODUCT:
        product = stack.prod(axis=0) * wide(postscale)
        return product, (size - 1 + scalings * size) * eps * np.abs(product) + tiny * size
    chosen = (stack.min(axis=0) if op == MIN else stack.max(axis=0)) * wide(postscale)
    return chosen, scalings * eps * np.abs(chosen)


def _reduced_integer(inputs: Sequence[Array], op: int, prescale: float, postscale: float) -> Array:
    narrow = inputs[0].dtype
    size = len(inputs)
    if prescale != 1.0 or postscale != 1.0:  # factors that a double multiplies exactly: halves and small integers
        scaled = [np.trunc(array.astype(np.float64) * prescale) for array in inputs]  # each is an integer again
        stack = np.stack(scaled)
        fold = {AVERAGE: np.sum, SUM: np.sum, MIN: np.min, MAX: np.max, PRODUCT: np.prod}[op]
        real = np.trunc(fold(stack, axis=0) * postscale / (size if op == AVERAGE else 1))
        info = np.iinfo(narrow)
        return np.array([min(max(int(x), int(info.min)), int(info.max)) for x in real.ravel()], dtype=narrow)
    stack = np.stack(inputs)
    modular = np.stack([array.astype(np.int64).view(np.uint64) for array in inputs])
    if op == SUM:
        return modular.sum(axis=0, dtype=np.uint64).astype(narrow)
    if op == PRODUCT:
        return modular.prod(axis=0, dtype=np.uint64).astype(narrow)
    if op == AVERAGE:
        totals = stack.astype(np.int64).sum(axis=0)
        return (np.sign(totals) * (np.abs(totals) // size)).astype(narrow)
    if op in (MIN, MAX):
        return stack.min(axis=0) if op == MIN else stack.max(axis=0)
    if op in (LOGICAL_AND, LOGICAL_OR):
        truth = stack != 0
        return (truth.all(axis=0) if op == LOGICAL_AND else truth.any(axis=0)).astype(narrow)
    fold_bits = np.bitwise_and if op == BITWISE_AND else np.bitwise_or
    return fold_bits.reduce(stack, axis=0)
