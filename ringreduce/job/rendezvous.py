"""How the ranks of one host find each other and come to share memory, before any group exists.

join_job() for a launched job, join_at() where the ranks have agreed on an address, join_placed() where ranks of several
hosts have met, share_fd() for one more memory file within a running job. Each ends with descriptors; what is in the
memory is the core's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ringreduce.errors import Error, PeerLostError, UnavailableError
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement, rendezvous_secret
from ringreduce.job.handshake import Meeting, errno_text, receive_fds
from ringreduce.job.pidfd import pidfd_of
from ringreduce.job.rendezvous_server import RendezvousServer

if TYPE_CHECKING:
    from ringreduce.job.places import PlacedRanks

ADDRESS_NBYTES = 100  # sun_path holds 108


@dataclass
class Joined:
    """What a rank holds after the rendezvous; its owner closes it."""

    fd: int
    """The world's control memory file, the same on all ranks."""
    pidfds: list[int]
    """pidfds[r] watches rank r's process; -1 for this rank."""

    def close(self) -> None:
        """Closes every descriptor. Idempotent."""
        open_fds = [fd for fd in (self.fd, *self.pidfds) if fd >= 0]
        self.fd, self.pidfds = -1, [-1] * len(self.pidfds)
        for fd in open_fds:
            os.close(fd)


def new_address() -> tuple[bytes, bytes]:
    """A fresh random (address, secret) for share_fd(); the caller tells the members over the group they have."""
    return b"ringreduce." + os.urandom(16).hex().encode(), os.urandom(32)


def join_job(placement: Placement, init_count: int, timeout_s: float, segment: Callable[[], int]) -> Joined:
    """Meets the other ranks of a launched job. Collective over the job.

    Args:
        placement: this rank, from environment.detect().
        init_count: how many jobs this process has joined; ranks with different counts do not meet.
        timeout_s: seconds until all ranks must have connected; 0 = no limit.
        segment: makes the control memory file; called on rank 0 only, once all ranks have connected.

    Raises:
        TimeoutError: names the missing ranks and the address.
        MismatchError: ranks disagree about size, rank or init count, or have different secrets.
        PeerLostError: a rank died on the way. UnavailableError: the kernel or the process limits do not allow it.
    """
    return _join(_job_meeting(placement, "", init_count), placement.rank, Deadline(timeout_s), segment)


def tell_job(placement: Placement, init_count: int, deadline: Deadline, text: str | None) -> str:
    """Rank 0's text, on all ranks of a launched job on one host. Collective over the job.

    It travels in a memory file that nobody else can open, so it may be a secret.

    Args:
        init_count: how many texts this job has told.
        text: rank 0's; None elsewhere.

    Raises: as join_job().
    """
    meeting = _job_meeting(placement, ".text", init_count)
    with errno_text(meeting.me(placement.rank), meeting.where()):
        if text is None:
            (fd,) = receive_fds(meeting, placement.rank, deadline)
        else:
            fd = os.memfd_create("ringreduce.text", os.MFD_CLOEXEC)
        try:
            if text is None:
                return os.pread(fd, os.fstat(fd).st_size, 0).decode()
            os.pwrite(fd, text.encode(), 0)
            with RendezvousServer(meeting, deadline) as server:
                server.accept_all()
                server.reply_all(lambda rank: [fd])
            return text
        finally:
            os.close(fd)


def join_at(
    address: bytes, secret: bytes, rank: int, size: int, deadline: Deadline, segment: Callable[[], int]
) -> Joined:
    """Meets the ranks of a group at an address that one of them got from new_address() and told the others.

    Collective; once per address. Raises: as join_job().
    """
    meeting = Meeting(address, secret, frozenset(range(1, size)), server=0, size=size, epoch=1)
    return _join(meeting, rank, deadline, segment)


def join_placed(placed: PlacedRanks, deadline: Deadline, segment: Callable[[], int]) -> Joined:
    """Meets the other ranks of this host, once all ranks of all hosts have met. Collective over the host's ranks.

    The descriptors of processes are by rank among all: -1 for those of other hosts. Raises: as join_job().
    """
    rank = placed.placement.rank
    here = [other for other, host in enumerate(placed.hosts) if host == placed.hosts[rank]]
    joined = join_at(placed.address, placed.secret, here.index(rank), len(here), deadline, segment)
    local, joined.pidfds = joined.pidfds, [-1] * len(placed.hosts)
    for other, pidfd in zip(here, local, strict=True):
        joined.pidfds[other] = pidfd
    return joined


def share_fd(
    make: Callable[[], int],
    members: Sequence[int],
    rank: int,
    address: bytes,
    secret: bytes,
    timeout_s: float,
    check: Callable[[], None] | None = None,
) -> int:
    """Sends a descriptor that the first member makes to all members of a group. Collective over the members.

    Args:
        make: returns the descriptor; called on the first member only, once all have connected: all hear why it fails.
        members: world ranks, in one order on all members.
        rank: this process's world rank.
        address, secret: from the first member's new_address(), the same on all members.
        timeout_s: seconds until all members must have connected; 0 = no limit.
        check: raises when a member will not connect any more. It is called now and then, and before another error is
            raised: a member that leaves the meeting because of a death is not the one that died.

    Returns:
        A descriptor of the same file on all members, which the caller owns.

    Raises: as join_job(), and what check raises.
    """
    leader = members[0]
    if len(members) == 1:
        return make()
    meeting = Meeting(address, secret, frozenset(members) - {leader}, leader, len(members), 0)
    deadline = Deadline(timeout_s, check)
    with errno_text(meeting.me(rank), meeting.where()):
        try:
            if rank != leader:
                return receive_fds(meeting, rank, deadline)[0]
            with RendezvousServer(meeting, deadline) as server, ExitStack() as undo:
                server.accept_all()
                fd = make()
                undo.callback(os.close, fd)
                server.reply_all(lambda member: [fd])
                undo.pop_all()
            return fd
        except Error:
            deadline.check()
            raise


def _job_meeting(placement: Placement, purpose: str, init_count: int) -> Meeting:
    """Where the ranks of a launched job on one host meet. purpose: tells several meetings of one job apart."""
    named = rendezvous_secret()
    # Processes that ranks of ringrun start with rank= and size= are jobs of their own, which may have names.
    name = named[0] if named and placement.source != "arguments" else placement.job
    return Meeting(
        address=_job_address(name + purpose, init_count),
        secret=named[1] if named else b"",
        clients=frozenset(range(1, placement.size)),
        server=0,
        size=placement.size,
        epoch=init_count,
    )


def _join(meeting: Meeting, rank: int, deadline: Deadline, segment: Callable[[], int]) -> Joined:
    """The meeting of a whole job: every rank gets the server's memory file and a pidfd of each rank."""
    with errno_text(meeting.me(rank), meeting.where()):
        if rank != meeting.server:
            fd, *pidfds = receive_fds(meeting, rank, deadline)
            joined = Joined(fd, pidfds)
        elif meeting.size == 1:
            return Joined(segment(), [-1])
        else:
            joined = _serve_job(meeting, deadline, segment)
        os.close(joined.pidfds[rank])
        joined.pidfds[rank] = -1
        return joined


def _serve_job(meeting: Meeting, deadline: Deadline, segment: Callable[[], int]) -> Joined:
    joined = Joined(-1, [-1] * meeting.size)
    try:
        with RendezvousServer(meeting, deadline) as server:
            pids = server.accept_all() | {meeting.server: os.getpid()}
            for rank, pid in pids.items():
                joined.pidfds[rank] = _pidfd(rank, pid)
            joined.fd = segment()
            server.reply_all(lambda rank: [joined.fd, *joined.pidfds])
    except BaseException:
        joined.close()
        raise
    return joined


def _pidfd(rank: int, pid: int) -> int:
    if pid == 0:
        raise UnavailableError(
            f"rank {rank} is in another PID namespace: start all ranks in one container (or --pid=host)"
        )
    try:
        return pidfd_of(pid)
    except ProcessLookupError:
        raise PeerLostError(f"rank {rank} (pid {pid}) died during the rendezvous") from None


def _job_address(job: str, init_count: int) -> bytes:
    """The abstract name where this user's job meets for the init_count-th time; a long job name is hashed."""
    ends = f"ringreduce.{os.geteuid()}.", f".{init_count}"
    name = job.encode()
    if len(name) + sum(map(len, ends)) > ADDRESS_NBYTES or b"\0" in name:
        import hashlib

        name = hashlib.sha256(name).hexdigest().encode()
    return ends[0].encode() + name + ends[1].encode()


def host_identity() -> bytes:
    """Equal for two processes if and only if abstract sockets connect them: one kernel, one network namespace."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip() + b":%d" % os.stat("/proc/self/ns/net").st_ino
