"""What this build and this job have, under the names by which Horovod's scripts ask; and the switch of the timeline.

The answers are about ringreduce itself: whether MPI or Gloo is installed on the machine plays no part.
"""

from __future__ import annotations

import os

from ringreduce import _core, state
from ringreduce.errors import InvalidArgumentError
from ringreduce.gpu import nccl
from ringreduce.job import recording


def mpi_built() -> bool:
    """True: ranks of several hosts are linked by whatever MPI mpi4py loads; whether there is one shows at init()."""
    return True


def mpi_enabled() -> bool:
    """Whether this job's ranks are linked by MPI: not before init(), nor where all are on one host."""
    return state.current is not None and state.current.communicator is not None


def mpi_threads_supported() -> bool:
    """Whether MPI calls from several threads are allowed beside ringreduce's own (MPI_THREAD_MULTIPLE).

    Raises:
        NotInitializedError: before init().
        InvalidArgumentError: the job does not use MPI. mpi4py works beside ringreduce as it works alone.
    """
    communicator = state.require().communicator
    if communicator is not None:
        return communicator.thread_level == "MPI_THREAD_MULTIPLE"
    raise InvalidArgumentError(
        "Horovod MPI is not enabled; ringreduce communicates without MPI here, and whatever level of thread support "
        "your own MPI library was initialised with (mpi4py: MPI.Query_thread()) is yours alone"
    )


def gloo_built() -> bool:
    """False: Gloo's part is played by ringreduce's own transports."""
    return False


def gloo_enabled() -> bool:
    """False: no job uses Gloo."""
    return False


def nccl_built() -> int:
    """NCCL's version code, such as 22705; 0 without CUDA in this build, or without an NCCL on this machine."""
    return nccl.version()[0] if _core.cuda_built() else 0


def ddl_built() -> bool:
    """False: IBM's DDL is not supported."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not supported."""
    return False


def cuda_built() -> bool:
    """True when the native core was built with CUDA."""
    return _core.cuda_built()


def rocm_built() -> bool:
    """False: ROCm is not supported."""
    return False


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Begins the timeline of this rank's operations, and ends the one that is on.

    Call it on all ranks at the same place of the program: each writes records of its own. Rank 0 also writes file_path,
    a trace in the form of Horovod's timeline, which https://ui.perfetto.dev and chrome://tracing show. While the job
    runs the trace has rank 0's operations; from stop_timeline() or shutdown() on, those of all ranks whose records
    rank 0 can read. The records are in the folder file_path + ".ranks", for `ringreduce timeline report file_path`.

    Args:
        file_path: the trace's file. An existing folder: the records go there, and there is no trace.
        mark_cycles: whether the trace has an event CYCLE_START where the execution of a bucket begins.

    Raises:
        InvalidArgumentError: file_path is not a path.
        NotInitializedError: before init().
        UnavailableError: the files cannot be made.
    """
    try:
        path = os.fspath(file_path)
    except TypeError:
        raise InvalidArgumentError(f"start_timeline: file_path is a path, not {file_path!r}") from None
    if not path:
        raise InvalidArgumentError("start_timeline: file_path is empty")
    place = state.require().placement
    recording.begin(path, place.rank, place.size, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline of this rank. Does nothing without one. Raises NotInitializedError before init()."""
    state.require()
    recording.end("stop_timeline() was called")
