"""What a collective within a JAX program is: the parameters of its primitive, fixed when it is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ringreduce.collectives.ops import Average, Sum
from ringreduce.errors import InvalidArgumentError


@dataclass(frozen=True)
class Call:
    """One collective, the same on all ranks but for `rows`, `splits` and `received`."""

    kind: str
    """allreduce, allgather, broadcast, reduce, reducescatter, alltoall or barrier."""
    process_set: int
    """Its id: the program outlives the object."""
    name: str | None = None
    op: int = int(Sum)
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = -1
    """Global rank."""
    rows: int | None = None
    """First dimension of the output; None: the input's."""
    splits: tuple[int, ...] = ()
    """alltoall: rows for each rank; none: equal parts."""
    received: tuple[int, ...] = ()
    """allgather, alltoall: rows from each rank, where they are known. Others are an error when the program runs."""
    in_place: bool = False
    """The output may take the input's place; XLA copies what is needed later."""
    transpose_op: int = int(Average)
    """allgather: the operation of the reducescatter that is its transpose."""
    is_transposed: bool = False
    """allreduce: this is the transpose of a sum: it only scales, and sends nothing."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str | None):
            raise InvalidArgumentError(f"{self.kind}: name is a text or None, not {self.name!r}")

    def attributes(self) -> dict[str, Any]:
        """As a handler of csrc/framework/jax.cc reads them."""
        return {
            "process_set": np.int64(self.process_set),
            "name": self.name or "",
            "op": np.int64(self.op),
            "prescale": np.float64(self.prescale),
            "postscale": np.float64(self.postscale),
            "root": np.int64(self.root),
            "splits": " ".join(map(str, self.splits)),
            "received": " ".join(map(str, self.received)),
        }

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of one operand's shape."""
        return shape if self.rows is None else (self.rows, *shape[1:])
