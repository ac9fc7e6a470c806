"""Horovod's collectives for dense tensors, as hvd.NAME and, as some scripts spell it, as hvd.mpi_ops.NAME.

The name of the module is Horovod's: nothing here uses MPI. What knows of tf.IndexedSlices and of compression is made of
these: collectives.py.
"""

from __future__ import annotations

from ringreduce.common import names
from ringreduce.common.adasum import is_power_of_two as num_rank_is_power_2  # noqa: F401
from ringreduce.common.basics import HorovodBasics
from ringreduce.common.names import *  # noqa: F403
from ringreduce.tensorflow.native import gradients as _gradients  # noqa: F401  # registers them
from ringreduce.tensorflow.native.data_movement import (
    allgather,
    alltoall,
    barrier,
    broadcast,
    broadcast_,
    grouped_allgather,
    join,
)
from ringreduce.tensorflow.native.ranks import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from ringreduce.tensorflow.native.reductions import (
    _allreduce as _allreduce,
)
from ringreduce.tensorflow.native.reductions import (
    _grouped_allreduce as _grouped_allreduce,
)
from ringreduce.tensorflow.native.reductions import (
    _grouped_reducescatter as _grouped_reducescatter,
)
from ringreduce.tensorflow.native.reductions import (
    _reducescatter as _reducescatter,
)
from ringreduce.tensorflow.util import (  # noqa: F401
    check_num_rank_power_of_2,
    gpu_available,
    handle_average_backwards_compatibility,
)

__all__ = [
    "allgather",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "size_op",
]
__all__ += names.__all__

_basics = HorovodBasics()
