"""Horovod's object behind its functions, which some scripts and its own tests reach as hvd.mpi_ops._basics."""

from __future__ import annotations

from ringreduce import basics, features, state

__all__ = ["HorovodBasics"]


class HorovodBasics:
    """The functions that need no tensor, as methods; ringreduce's functions of the same names say what they do."""

    init = staticmethod(basics.init)
    shutdown = staticmethod(basics.shutdown)
    is_initialized = staticmethod(basics.is_initialized)
    rank = staticmethod(basics.rank)
    size = staticmethod(basics.size)
    local_rank = staticmethod(basics.local_rank)
    local_size = staticmethod(basics.local_size)
    cross_rank = staticmethod(basics.cross_rank)
    cross_size = staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    start_timeline = staticmethod(features.start_timeline)
    stop_timeline = staticmethod(features.stop_timeline)
    mpi_threads_supported = staticmethod(features.mpi_threads_supported)
    mpi_enabled = staticmethod(features.mpi_enabled)
    mpi_built = staticmethod(features.mpi_built)
    gloo_enabled = staticmethod(features.gloo_enabled)
    gloo_built = staticmethod(features.gloo_built)
    nccl_built = staticmethod(features.nccl_built)
    ddl_built = staticmethod(features.ddl_built)
    ccl_built = staticmethod(features.ccl_built)
    cuda_built = staticmethod(features.cuda_built)
    rocm_built = staticmethod(features.rocm_built)

    @staticmethod
    def _get_process_set_ids_and_ranks() -> dict[int, list[int]]:
        """The global ranks of every registered process set, by its id. Raises NotInitializedError before init()."""
        job = state.require()
        others = {number: list(process_set.ranks) for number, process_set in sorted(job.process_sets.items())}
        return {0: list(range(job.placement.size)), **others}
