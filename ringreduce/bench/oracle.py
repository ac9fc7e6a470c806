"""What the inputs hold and what the result must be, computed without any collective.

Inputs are small integers that depend on rank and position, so small that every result is exactly representable in the
dtype: the check is equality, element by element. (Average divides; it may differ by one rounding.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringreduce.errors import InvalidArgumentError

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

DTYPES: dict[str, tuple[type[np.generic], int, float]] = {
    "float16": (np.float16, 1 << 11, 2.0**-10),
    "bfloat16": (np.uint16, 1 << 8, 2.0**-7),
    "float32": (np.float32, 1 << 20, 2.0**-23),
    "float64": (np.float64, 1 << 20, 2.0**-52),
    "int8": (np.int8, 127, 0),
    "int16": (np.int16, 1 << 14, 0),
    "int32": (np.int32, 1 << 20, 0),
    "int64": (np.int64, 1 << 20, 0),
    "uint8": (np.uint8, 255, 0),
}
"""dtype: (NumPy type that stores it, largest integer used (all below it are exact), one rounding of 1.0)."""

OPS = {"sum": 1, "average": 0, "min": 3, "max": 4, "product": 5}
"""op: its code, Horovod's."""

PRODUCT_RANKS = 12  # every third rank multiplies by two: 2^4 at 12 ranks is far from int8's end
BLOCK = 1 << 20  # elements handled at once: the expectation of a large buffer never exists whole


class Oracle:
    """Inputs and expected values for one dtype, op and number of ranks."""

    def __init__(self, dtype: str, op: str, ranks: int) -> None:
        self.storage, limit, rounding = DTYPES[dtype]
        self.is_bfloat16 = dtype == "bfloat16"
        self.is_float = rounding > 0
        self.op = op
        self.ranks = ranks
        self.tolerance = rounding if op == "average" else 0.0
        self.modulus = min(61, limit // ranks if op in ("sum", "average") else limit)
        if self.modulus < 2 or (op == "product" and ranks > PRODUCT_RANKS):
            advice = "" if op == "product" else "use float32, or "
            raise InvalidArgumentError(
                f"ringreduce bench: {ranks} ranks are too many for an exact {op} of {dtype}; {advice}--no-check"
            )

    def inputs(self, ranks: Integers | int, positions: Integers) -> Integers:
        """The integer at a position of a rank's input. Arguments broadcast."""
        mixed: Integers = positions * 31 + (positions >> 12) * 7 + np.int64(17) * ranks
        return 1 + (mixed % 3 == 0) if self.op == "product" else 1 + mixed % self.modulus

    def reduced(self, positions: Integers) -> Reals:
        """The reduction over all ranks of the inputs at these positions."""
        everyone = [self.inputs(rank, positions) for rank in range(self.ranks)]
        fold = {"sum": np.add, "average": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}[self.op]
        result = everyone[0]
        for values in everyone[1:]:
            result = fold(result, values)
        if self.op == "average":
            return result / self.ranks if self.is_float else (result // self.ranks).astype(np.float64)
        return result.astype(np.float64)

    def fill(self, array: NDArray[Any], rank: int) -> None:
        """Writes this rank's input."""
        for start in range(0, array.size, BLOCK):
            positions = np.arange(start, min(start + BLOCK, array.size), dtype=np.int64)
            values = self.inputs(rank, positions)
            if self.is_bfloat16:  # the upper half of a float32
                values = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
            array[start : start + positions.size] = values

    def decode(self, stored: NDArray[Any]) -> Reals:
        """The numbers in an array of the dtype."""
        if self.is_bfloat16:
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(np.float64)

    def wrong(self, array: NDArray[Any], start: int, want: Reals) -> int:
        """How many elements from start on differ from want (NaN differs)."""
        got = self.decode(array[start : start + want.size])
        return int(np.count_nonzero(~(np.abs(got - want) <= self.tolerance * np.abs(want))))
