"""Ranks from an MPI communicator, an all-reduce that checks itself, one line per rank.

ringrun --transport mpi -np 4 python examples/mpi_hello.py
mpirun -np 4 python examples/mpi_hello.py
"""

import numpy as np
from mpi4py import MPI

import ringreduce

COUNT = 100_003

with ringreduce.init(comm=MPI.COMM_WORLD) as world:
    index = np.arange(COUNT, dtype=np.float64)
    total = ringreduce.allreduce(index * (world.rank + 1), op=ringreduce.Sum)
    wrong = np.count_nonzero(total != index * (world.size * (world.size + 1) // 2))
    if wrong:
        raise SystemExit(f"rank {world.rank}: {wrong} of {COUNT} sums are wrong")
    host = MPI.Get_processor_name()
    place = f"local {world.local_rank} of {world.local_size} on {host}"
    print(f"rank {world.rank} of {world.size}, {place}: {COUNT} sums are right", flush=True)
