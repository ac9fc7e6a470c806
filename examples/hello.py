import numpy as np

import ringreduce

with ringreduce.init() as world:
    total = ringreduce.allreduce(np.full(4, world.rank + 1.0), op=ringreduce.Sum)
    print(f"rank {world.rank} of {world.size}: {total}")
