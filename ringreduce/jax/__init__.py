"""ringreduce for JAX: collectives of arrays, outside and inside of jit, grad, vmap, scan, cond and while_loop.

    import ringreduce.jax as hvd

    hvd.init()
    tx = hvd.distributed(optax.adam(1e-3))
    params = hvd.broadcast_parameters(params, root_rank=0)

Nothing here is compiled against JAX: any version from 0.4.31 on will do. Inside jit a collective is a custom call of
the XLA program, in the order in which it was traced. Horovod has no JAX package; the names are those of its others.
docs/user/jax.md has the rest.
"""

from __future__ import annotations

from ringreduce.common.needs import need

need("jax", __name__, "'ringreduce[jax]'")

from ringreduce.collectives.objects import allgather_object, broadcast_object
from ringreduce.common import names
from ringreduce.common.names import *  # noqa: F403  # its __all__ is part of the one below
from ringreduce.jax import (
    hooks as hooks,  # before any program is compiled, so that it runs in time at exit
)
from ringreduce.jax.averaging import LocalSGD, LocalSGDState, diloco, local_sgd
from ringreduce.jax.compression import Compression
from ringreduce.jax.data_movement import allgather, alltoall, barrier, broadcast
from ringreduce.jax.failures import named_errors
from ringreduce.jax.functions import broadcast_parameters
from ringreduce.jax.optimizer import AccumulationState, GradientTransformation, distributed
from ringreduce.jax.reductions import allreduce, grouped_allreduce, reducescatter
from ringreduce.jax.versions import MECHANISM

__all__ = [
    "MECHANISM",
    "AccumulationState",
    "Compression",
    "GradientTransformation",
    "LocalSGD",
    "LocalSGDState",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "diloco",
    "distributed",
    "grouped_allreduce",
    "local_sgd",
    "named_errors",
    "reducescatter",
]
__all__ += names.__all__
