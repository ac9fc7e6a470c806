"""One MPI_Allreduce through mpi4py, without ringreduce: what a cluster must be able to do. Run on every rank:

    mpirun ... python -m mpi_allreduce COUNT          # float32 elements

Each rank prints one line, its Report. expected_sum() says what the sum should be.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Report:
    """What one rank found."""

    rank: int
    size: int
    host: str
    weighed_sum: int
    """Of the result, each element times its position modulo 7: elements in wrong places show."""
    library: str
    """As MPI names itself."""


LINE = re.compile(r"allreduce (\d+)/(\d+) on (\S+): (\d+) by (.*)")


def main(count: int) -> None:
    """Reduces and prints."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    position = np.arange(count)
    mine = ((position % 1021 + 1) * (world.rank + 1)).astype(np.float32)
    result = np.empty_like(mine)
    world.Allreduce(mine, result)
    weighed = int((result.astype(np.int64) * (position % 7)).sum())
    library = " ".join(MPI.Get_library_version().replace(",", " ").split()[:4])
    # One write: lines of several ranks do not mix.
    line = f"allreduce {world.rank}/{world.size} on {socket.gethostname()}: {weighed} by {library}\n"
    os.write(1, line.encode())


def read(output: str) -> list[Report]:
    """The ranks' lines in a launcher's output, by rank."""
    found = (LINE.fullmatch(line) for line in output.splitlines())
    return sorted(Report(int(m[1]), int(m[2]), m[3], int(m[4]), m[5]) for m in found if m)


def expected_sum(count: int) -> int:
    """What one rank's own elements weigh, in whole numbers; rank r contributes r + 1 times as much."""
    return sum((place % 1021 + 1) * (place % 7) for place in range(count))


if __name__ == "__main__":
    main(int(sys.argv[1]))
