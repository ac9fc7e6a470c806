"""The native module: bindings without logic over csrc/.

A *buffer* argument is either any C-contiguous object with the buffer protocol (a NumPy array), or a tuple
``(address, shape, dtype_code, owner)`` made by collectives.buffers for everything else: whoever submits a tuple's bytes
keeps the owner alive until the operation has finished, as it does for a buffer. The device form of the tuple,
``(address, shape, dtype_code, owner, ordinal, stream)``, is for memory of GPU `ordinal` whose content comes from work
on `stream` (a CUstream as an int; 0, 1 and 2 are the default streams as in CUDA): the operation begins once the stream
has come there; Work.wait() blocks until it is done. Dtype codes are the order of
``dtypes()``; op codes are Horovod's (average 0, sum 1, adasum 2, min 3, max 4, product 5), then logical_and 6,
logical_or 7, bitwise_and 8, bitwise_or 9. A wire is one of wires(), or None for "none". Ranks (root, peers) are ranks
within the group. Times are seconds.
Every call that can block releases the GIL, answers Ctrl-C, and raises the classes of ringreduce.errors.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

Buffer: TypeAlias = Any

__version__: str
WIRE_BLOCK: int
"""Elements of the wire int8 that share a scale."""
CHUNK_DEFAULT: int
CHUNK_LARGEST: int
EAGER_DEFAULT: int
EAGER_LARGEST: int
RING_NBYTES: int
PLAN_UNUSABLE: int
"""A TuningPlan's hash that says: this rank has a file that is no plan, or none for this job."""

def dtypes() -> list[tuple[str, int]]:
    """(name, itemsize) of each dtype; the index is the dtype code."""

def knobs() -> list[tuple[str, str, str, str, str, str]]:
    """(name, unit, range, default, Horovod alias or "", meaning) of every RINGREDUCE_* variable."""

def wires() -> list[str]:
    """Names of the codecs for float32 elements between hosts; the first, "none", is no codec."""

def wire_round_trip(wire: str, address: int, count: int) -> None:
    """Makes of count float32 elements what arrives when they are sent through a codec."""

def isas() -> list[str]:
    """Names of the CPU kernel sets this machine can run, best first."""

def cuda_built() -> bool:
    """Whether this build has kernels for GPUs."""

def gpu_of(address: int) -> int:
    """The ordinal of the GPU whose memory an address is in.

    Raises UnavailableError without a driver, InvalidArgumentError for other memory.
    """

def gpu_path(forced: str, ranks: int, gpus: int, nccl: bool) -> tuple[str, str]:
    """The path of an all-reduce of so many ranks of one host on so many GPUs, and why; "none" if there is none.

    forced: a value of RINGREDUCE_GPU_PATH.
    """

def nccl() -> tuple[int, str]:
    """(version code, name and file) of the NCCL that is used, which this loads; (0, why) when there is none."""

def nccl_found_at(path: str) -> None:
    """Where a package has an NCCL that nobody has loaded yet."""

def cuda_report() -> list[tuple[str, str]]:
    """What the CUDA driver says of itself and of its GPUs, as (name, text): ("driver", "13.0 (libcuda.so.1)"), then
    ("GPU 0", its name) and so on; ("driver", why not) when there is none. Creates no context."""

def control_nbytes(size: int) -> int:
    """Bytes of the control segment of a group of size ranks."""

def memfd(label: str, nbytes: int) -> int:
    """A new anonymous, close-on-exec memory file of nbytes zero bytes; the caller owns the descriptor."""

def stream(dst: int, src: int, nbytes: int) -> None:
    """Copies between two addresses that do not overlap, past the caches: for what is not read again soon."""

class Segment:
    """Registered (symmetric) memory: one memory file of `regions` equal parts, mapped whole.

    Has the buffer protocol over this rank's own region (writable, 1-D bytes). Unmapped when the last reference dies;
    does not need a Context and survives shutdown(). uid is the same on all ranks and unique to the allocation.
    """

    def __init__(self, fd: int, uid: int, region: int, regions: int, nbytes: int) -> None:
        """Maps a duplicate of fd; the caller still owns fd. nbytes is one region's, a multiple of 4096."""

def before_fork() -> None:
    """Copies all registered memory for the child of the fork that follows. Raises Error where there is no memory."""

def after_fork_in_parent() -> None:
    """Lets the next operation on registered memory drop its copy."""

def after_fork_in_child() -> None:
    """Makes the registered memory private to this process, with the content that before_fork() has copied."""

class Work:
    """One submitted operation. Dropping it does not cancel it; its buffers stay alive until it has finished."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until finished and raises its error, if any.

        Running out of `timeout` raises TimeoutError and leaves the operation pending.
        """

    def withdraw(self) -> None:
        """For a synchronous call that an exception has ended: its arrays are left alone from here on.

        What all ranks are in is finished first, at most 10 s; what not all have called is withdrawn; else the group
        fails. No effect on what has ended.
        """

    def done(self) -> bool:
        """True once wait() would not block (also when it failed)."""

    @property
    def on_gpu(self) -> bool: ...
    @property
    def output(self) -> Any:
        """Bytes that the operation itself allocated (allgather, alltoall, gather at the root), valid after wait().

        A memoryview; of GPU memory, a DeviceMemory; None when there are none.
        """

    @property
    def counts(self) -> list[int]:
        """First dimensions received from each rank (allgather, gather, alltoall), valid after wait()."""

    @property
    def peer(self) -> int:
        """Of a message, the other rank; of a recv_async from any rank, valid after wait(). -1 for a collective."""

class DeviceMemory:
    """Bytes in the memory of a GPU, given back with the last reference; also __cuda_array_interface__, as uint8."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class DLPack:
    """What a capsule of __dlpack__() describes, taken over from it."""

    def __init__(self, capsule: object) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> tuple[int, int]:
        """(type, number); type 2 is CUDA."""

    @property
    def type(self) -> tuple[int, int, int]:
        """(code, bits, lanes)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...] | None:
        """In elements."""

class Group:
    """A group of ranks (a communicator)."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> list[int]:
        """World ranks of the members, ascending; index = group rank."""

    def allreduce(
        self,
        src: Buffer,
        dst: Buffer,
        op: int,
        prescale: float,
        postscale: float,
        name: str | None,
        wire: str | None = None,
    ) -> None:
        """Synchronous allreduce of one tensor; dst may be src. The fast path."""

    def allreduce_async(
        self,
        srcs: Sequence[Buffer],
        dsts: Sequence[Buffer],
        op: int,
        prescale: float,
        postscale: float,
        name: str | None,
        wire: str | None = None,
    ) -> Work:
        """One tensor, or several as one grouped operation (same dtype or not); each dst may be its src."""

    def reducescatter_async(
        self, src: Buffer, dst: Buffer, op: int, prescale: float, postscale: float, name: str | None
    ) -> Work:
        """dst has this rank's rows: the first dim0 % size ranks get one extra row."""

    def allgather_async(
        self, src: Buffer, name: str | None, dst: Buffer | None = None, expected: Sequence[int] = ()
    ) -> Work:
        """dst, here and for alltoall: where the output goes if it has just the output's size; Work.output is then None.

        If it has not, the output is allocated as without it. src may be this rank's part of dst.

        expected, here, for alltoall and for gather at the root: the rows from each rank that there is room for. Others
        are a MismatchError on this rank, known when the operation is done; on the other ranks it is as if there were
        none. A CUDA graph can capture these operations only with dst and expected.
        """

    def broadcast_async(self, buffer: Buffer, root: int, name: str | None) -> Work:
        """In place: the root's bytes reach every rank's buffer."""

    def alltoall_async(
        self,
        src: Buffer,
        splits: Sequence[int] | None,
        name: str | None,
        dst: Buffer | None = None,
        expected: Sequence[int] = (),
    ) -> Work:
        """splits: rows for each rank, sum <= dim 0; None = equal parts."""

    def reduce_async(
        self, src: Buffer, dst: Buffer, op: int, prescale: float, postscale: float, root: int, name: str | None
    ) -> Work:
        """dst is written on the root only; elsewhere it may be src and is left alone."""

    def gather_async(self, src: Buffer, root: int, name: str | None, expected: Sequence[int] = ()) -> Work: ...
    def scatter_async(self, src: Buffer | None, dst: Buffer, root: int, name: str | None) -> Work:
        """src (root only, size x dst bytes, rank-major); every rank's dst has the same shape."""

    def barrier(self, name: str | None) -> None: ...
    def barrier_async(self, name: str | None) -> Work: ...
    def send_async(self, src: Buffer, dst_rank: int, tag: int) -> Work: ...
    def recv_async(self, dst: Buffer, src_rank: int, tag: int) -> Work:
        """src_rank -2: the first message of any rank that no older receive takes; Work.peer then says whose it was."""

    @property
    def is_joining(self) -> bool: ...
    def check_members(self, ranks: Sequence[int]) -> None: ...
    def join(self) -> int:
        """Blocks until every rank has joined; returns the last rank to join, the same on all."""

    def algorithm(self, kind: str, nbytes: int, dtype: int, registered: bool) -> str:
        """The algorithm that select would use."""

    def bench(self, kind: str, src: Buffer, dst: Buffer, op: int, iters: int, rewrite: bool) -> list[float]:
        """Seconds per call, timed inside the core. kind: allreduce | reducescatter | allgather | broadcast | alltoall |
        barrier. rewrite: each call is preceded by rewriting src and a barrier and timed alone (iters values); else one
        value, the mean of iters back-to-back calls."""

    def sizes(self) -> tuple[int, int]:
        """Bytes of a chunk of the staging area, and of the largest eager message, of this group here."""

    def set_sizes(self, chunk_nbytes: int, eager_nbytes: int) -> None:
        """Replaces both, on all hosts. Collective, with no operation of the group under way. Raises
        InvalidArgumentError for sizes that cannot be."""

    def memory_limit(self, kind: str, src: Buffer, dst: Buffer, op: int, iters: int) -> list[float]:
        """Seconds of this rank's loads and stores of one call, without synchronisation; iters values. src and dst are
        registered memory of the world at the same place on every rank (InvalidArgumentError otherwise)."""

    def one_way_latency(self, src: Buffer, iters: int) -> float:
        """Seconds that news takes between ranks 0 and 1 (0 on others) by a polled line; where ranks outnumber cores,
        both give way between two looks. src: registered memory, at least 64 bytes, which is overwritten."""

def kinds() -> list[str]:
    """Names of the kinds of operations, by their codes in a timeline's records."""

def ops() -> list[str]:
    """Names of the reductions, by their codes."""

def algorithms() -> list[str]:
    """Names of the algorithms, by their codes in a timeline's records."""

class SegmentView:
    """The memory of another job, mapped for reading alone. Raises InvalidArgumentError where it is none.

    Raises UnavailableError where the job has another version of ringreduce, or its ranks have not met yet.
    """

    def __init__(self, fd: int) -> None:
        """fd: of the memory; may be closed afterwards."""
    @property
    def size(self) -> int:
        """How many ranks the job has."""
    @property
    def hosts(self) -> int:
        """On how many hosts."""
    @property
    def host(self) -> int:
        """This one's number among them."""
    @property
    def context(self) -> str:
        """Which of the contexts of its processes the memory is of."""
    def read(self) -> dict[str, object]:
        """{"sampled_s", "unsampled_s", "late", "failure", "ranks"}, as SegmentView::Snapshot in csrc/negotiation."""

class Timeline:
    """Writes what this process's operations do into a file, on a thread of its own, until stop().

    Raises UnavailableError where a file cannot be made, or the process has a timeline already.
    """

    def __init__(
        self,
        path: str | bytes,
        rank: int,
        process: str,
        monotonic_ns: int,
        realtime_ns: int,
        trace: str | bytes = "",
        mark_cycles: bool = False,
    ) -> None:
        """process: what the file says of this rank, in JSON. monotonic_ns, realtime_ns: both clocks at one moment, time
        0 of the trace. trace: the file of a trace in Horovod's form, "" for none; mark_cycles: with "CYCLE_START"."""

    def stop(self, reason: str) -> bool:
        """Writes what has been recorded, and ends the files. Does nothing twice.

        Returns whether the disk has answered within 5 s; where it has not, a warning says so.
        """

def renew_recorder() -> None:
    """For a forked child: contexts that are made from now on record for timelines of its own."""

class TuningPlan:
    """Sizes of a plan file."""

    def __init__(self, hash: int = 0, chunk_nbytes: int = 0, eager_nbytes: int = 0) -> None:
        """hash: 0 for no plan. eager_nbytes: 0 on several hosts."""

class Context:
    """One rank's membership of one job: its groups, its engine thread, its failure state."""

    def __init__(
        self,
        fd: int,
        rank: int,
        size: int,
        pidfds: Sequence[int],
        hostname: str,
        timeout: float | None = None,
        hosts: Sequence[int] | None = None,
        mpi: MpiCommunicator | None = None,
        tcp: TcpNetwork | None = None,
        recorded_as: str = "",
        job_ranks: Sequence[int] = (),
        plan: TuningPlan = ...,
    ) -> None:
        """Collective. fd: the world's control segment on this host (control_nbytes(size), zero-filled); pidfds[r]
        watches rank r (-1 for this rank and those of other hosts). Duplicates what it keeps. Knobs are read from the
        environment here; timeout, in seconds and 0 for never, stands in for RINGREDUCE_TIMEOUT. hosts: by rank, equal
        numbers on the same host, whose ranks are reached over mpi or tcp; None: all are on one. recorded_as: what the
        context is called in timelines, the same on all ranks; job_ranks: by its ranks, empty: they are the job's. plan:
        of ringreduce.plan, the same on all ranks; those of this host raise MismatchError where it is not."""

    def set_timeout(self, timeout: float) -> None:
        """Replaces the timeout of operations, also of those that are pending here."""

    @property
    def world(self) -> Group: ...
    @property
    def most_group(self) -> int:
        """The highest id that the network has room for."""

    def add_group(self, fd: int, ranks: Sequence[int], id: int) -> Group:
        """Collective over ranks (world ranks, ascending, this one included). id: 1 to most_group, the same on all
        ranks, and never used before in this context."""

    def remove_group(self, group: Group) -> None: ...
    def fail_as_lost(self, why: str) -> None:
        """An exception ends this process: all ranks' operations fail with PeerLostError, whose text says why."""

    def shutdown(self, why: str = "") -> None:
        """Marks this rank as shut down, fails what is pending here with ShutdownError, joins the engine. Idempotent.

        why: the ranks whose operations need this one raise PeerLostError with it. Empty: ShutdownError.
        """

    @property
    def gpu(self) -> int | None:
        """This rank's GPU, as CUDA counts them; None before its first operation on GPU memory."""

    def device_memory(self, ordinal: int, nbytes: int) -> DeviceMemory:
        """New memory of a GPU, uninitialised. Raises UnavailableError without CUDA, HorovodInternalError when full."""

    def copy_on_gpu(self, src: Buffer, dst: Buffer) -> Work:
        """Copies between two arrays of one GPU, after their streams' work."""

    def forget_after_fork(self) -> None:
        """For a forked child, which may call nothing else: closes the inherited descriptors."""

    def failure(self) -> str | None:
        """The first fatal cause, or None."""

    def stats(self) -> dict[str, int]: ...
    def times(self) -> tuple[float, list[float], list[float]]:
        """Seconds since init(), as the leader of this host samples them: how long it has; how long each rank waited for
        others; how long others waited for each rank. Ranks of other hosts: as far as this host knows."""

    def links(self) -> list[tuple[int, int, int, float]]:
        """(from, to, bytes, busy) of each link between hosts, since init(): numbers of hosts; seconds in which it had
        bytes that the network did not take yet. The first host knows of all, another one of its own; none on one."""

    def calls(self) -> str:
        """What this rank has called last, in words: "called allreduce 'loss' #12 last"."""

    def settings(self) -> list[tuple[str, str, str]]:
        """(name, value, origin) of every knob as this context read it; origin: default | the variable's name."""

def framework_table() -> int:
    """The address of the table of C functions (csrc/framework/table.h) that kernels in other shared objects call.

    From then on signals that have handlers are noticed while such a kernel waits; the handlers run as before.
    """

def framework_raise() -> None:
    """Raises what a signal's handler raised while a kernel waited on the main thread; once. Else does nothing."""

def framework_begin_eager() -> None:
    """This thread is about to run a kernel itself: what other threads Python has, counts in verdicts of deadlock."""

def framework_end_eager() -> None:
    """Ends what framework_begin_eager() began."""

def framework_note_threads() -> None:
    """This thread is about to build a program of JAX: that Python has other threads counts in verdicts of deadlock."""

def framework_start(rank: int, size: int, local_rank: int, local_size: int) -> None:
    """What kernels that ask for this process's place get to know."""

def framework_enter(process_set: int, ranks: Sequence[int], group: Group | None) -> None:
    """Lets kernels use a process set by its id. group: None where this rank is no member. The group is not kept."""

def xla_handlers() -> dict[str, object]:
    """The handlers of csrc/framework/jax.h as PyCapsules, by the names under which XLA gets to know them."""

def framework_leave(process_set: int) -> None:
    """Ends what framework_enter() began. Kernels that are in a call go on."""

def framework_end(absence: str) -> None:
    """No job from here on: calls of kernels fail with NotInitializedError(absence)."""

def framework_drain(timeout: float) -> bool:
    """Waits until no kernel is in a call; False when that takes longer than timeout seconds."""

def framework_forget_after_fork(absence: str) -> None:
    """framework_end() for a forked child, which leaves its parent's groups alone."""

class MpiLibrary:
    """The functions of the MPI that mpi4py has loaded. One per process: its communicators call MPI one at a time."""

    def __init__(self, path: str, handle_size: int) -> None:
        """path: a loaded library that depends on MPI (mpi4py.MPI.__file__). handle_size: bytes of an MPI_Comm."""

    @property
    def abi(self) -> str:
        """mpich | openmpi | mpiabi."""

    def cuda(self, setting: str) -> tuple[bool, str]:
        """Whether it is given pointers to GPU memory, and why. setting: RINGREDUCE_MPI_CUDA, auto | on | off."""

class MpiCommunicator:
    """A duplicate of a communicator, for links. Calls raise ShutdownError once it is closed or MPI is finalised."""

    def __init__(
        self, library: MpiLibrary, comm: int, byte: int, errors_return: int, timeout: float, tag_ub: int = ...
    ) -> None:
        """Collective over comm; the three handles are MPI._handleof's. timeout, for all ranks to come: 0 = never.
        tag_ub: the library's MPI_TAG_UB."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def thread_level(self) -> str:
        """What MPI was initialised with, such as "MPI_THREAD_MULTIPLE"."""

    def progress(self) -> bool:
        """Lets MPI work on what was pushed. True while some of it is on its way."""

    def close(self, drain: float = 1.0) -> None:
        """Waits up to drain seconds for what is on its way, then leaves it to MPI. Local; does nothing twice."""

    def link(
        self, peer: int, send_tag: int, receive_tag: int, message_nbytes: int = 64512, depth: int = 16
    ) -> Link: ...

def libcrypto_name() -> str:
    """The file of OpenSSL's libcrypto that TcpNetwork uses. Raises UnavailableError where there is none."""

class TcpNetwork:
    """The TCP connections of one rank to ranks on other hosts, for one Context."""

    def __init__(
        self,
        rank: int,
        listener: int,
        addresses: Sequence[tuple[str, int]],
        key: bytes,
        lost_after_ms: int = 2800,
        encrypt: str = "auto",
    ) -> None:
        """listener: a descriptor that this object owns from now on; it listens at addresses[rank]. addresses: by rank,
        IP address and port. key: 32 bytes, of this job alone. lost_after_ms: without a sign of life from a leader's
        host for so long, the leader is lost. encrypt: RINGREDUCE_ENCRYPT, auto | on | off."""

class Link:
    """One edge to one peer, as algorithms use it. No call blocks; each returns the bytes moved, 0 for none now."""

    def push(self, src: Buffer) -> int: ...
    def pull(self, dst: Buffer) -> int: ...
    def fold(self, dst: Buffer, op: int) -> int:
        """dst = op(dst, incoming), whole elements."""
