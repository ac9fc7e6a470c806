"""How the ranks of a job that TCP connects learn where rank 0 listens, and the job's secret, under each launcher.

Rank 0 listens; the others are told where, by what their launcher has: MPI, torchrun's store, Slurm's variables, or the
Unix socket where the ranks of one host meet. Or the user has said it to all of them. Then all meet (rendezvous.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Literal

from ringreduce import config
from ringreduce.errors import Error, InvalidArgumentError, MismatchError, UnavailableError
from ringreduce.job import communicators, environment, mpi, rendezvous
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.handshake import told_error
from ringreduce.job.places import TCP, TcpWanted
from ringreduce.job.tcp import slurm_step
from ringreduce.job.tcp.own_address import ip_of_name, reachable_ip
from ringreduce.job.tcp.rendezvous import (
    STALE_S,
    Met,
    TcpMeeting,
    address_text,
    mac,
    meet,
    parse_address,
    rank_listener,
    read_secret,
    users_ports,
)
from ringreduce.job.tcp.rendezvous_server import listening_at
from ringreduce.job.tcp.torchrun_store import ToldAgainError, ToldByStore

LOOPBACK = "127.0.0.1"
ERROR_CHARS = 1000
NEW_SECRET = "(umask 077; head -c 32 /dev/urandom | base64 > ~/.ringreduce-secret)"

Source = Literal["address", "host", "mpi", "torchrun", "slurm"]
"""What tells the ranks where rank 0 listens."""


def host_and_port(address: str, what: str = "RINGREDUCE_ADDRESS=") -> tuple[str, int]:
    """Of RINGREDUCE_ADDRESS: ("", 0) of "", ("", port) of ":port". Raises InvalidArgumentError.

    what: as parse_address()'s.

    >>> host_and_port(":29400")
    ('', 29400)
    """
    if address[:1] == ":" and address[1:].isdecimal() and 0 < int(address[1:]) < 65536:
        return "", int(address[1:])
    return parse_address(address, what) if address else ("", 0)


def init_timeout_s(environ: Mapping[str, str]) -> float:
    """How long ranks with these variables wait for one another. Raises InvalidArgumentError that names the variable."""
    return config.others_seconds("RINGREDUCE_INIT_TIMEOUT", environ)


def source(place: Placement, wanted: TcpWanted) -> Source | None:
    """What tells the ranks where rank 0 listens; None: the job is not connected by TCP.

    Raises:
        InvalidArgumentError: the address or the transport cannot be.
        UnavailableError: TCP is asked for, or nothing else is possible, and there is no such source.
    """
    is_variables = wanted.address == config.value("RINGREDUCE_ADDRESS").value
    host, port = host_and_port(wanted.address, "RINGREDUCE_ADDRESS=" if is_variables else "address ")
    asked = bool(wanted.address) or wanted.transport in TCP
    if wanted.transport in ("mpi", "shm"):
        if asked:
            raise InvalidArgumentError(
                f"RINGREDUCE_TRANSPORT={wanted.transport}: an address is for TCP; leave one of them out"
            )
        return None
    spans = environment.spans_hosts(place)
    if host and not spans and wanted.transport not in TCP and environment.rendezvous_secret() is not None:
        host, port = "", 0  # the ranks of ringrun on one host need none; another job that is given it would meet them
    by_mpi = place.source in ("openmpi", "pmix", "mpich")
    if host and not (spans and by_mpi and not wanted.secret_file):
        return "address"
    if spans and by_mpi:
        return "mpi" if asked else None
    if spans and place.source in ("torchrun", "slurm"):
        if wanted.secret_file:
            return "torchrun" if place.source == "torchrun" else "slurm"
        if asked or place.source == "torchrun":
            raise UnavailableError(
                f"{place.source} started this job on several hosts, which need the job's secret to be connected by "
                "TCP: set RINGREDUCE_SECRET_FILE to a file that is the same on all hosts; make one with: " + NEW_SECRET
            )
        return None
    if not spans and _is_known_to_be_here(place):
        return "host" if wanted.transport == "tcp" or port else None
    is_here_by_default = place.source != "torchrun" and wanted.transport != "tcp" and not port
    if not asked or is_here_by_default:
        return None
    raise UnavailableError(
        f"RINGREDUCE_TRANSPORT={wanted.transport}: nothing tells the ranks where rank 0 listens: set "
        "RINGREDUCE_ADDRESS=host:port, an address of rank 0's host, and RINGREDUCE_SECRET_FILE, a file with the job's "
        "secret; the same on all ranks. For ranks that are all on one host, leave RINGREDUCE_TRANSPORT at auto"
    )


def _is_known_to_be_here(place: Placement) -> bool:
    """Whether somebody has said that all ranks are on this host, and not just nobody that they are not."""
    if place.size == 1 or environment.rendezvous_secret() is not None:
        return True
    if place.source == "torchrun":  # RANK and WORLD_SIZE are set by many that say nothing of hosts
        return environment.has_torch_local_size()
    return place.source not in ("arguments", "ringrun", "horovod")


def meet_ranks(told_by: Source, place: Placement, wanted: TcpWanted, count: int, timeout_s: float) -> Met:
    """Meets the ranks of all hosts. Collective over the job.

    Args:
        told_by: from source(); the same on all ranks.
        count: which job over TCP it is of this process, as each rank must say.
        timeout_s: until all ranks must have come; 0 = no limit.

    Raises: as rendezvous.meet(), and what keeps the ranks from learning where rank 0 listens.
    """
    deadline = Deadline(timeout_s)
    me = f"[rendezvous] rank {place.rank}/{place.size}"
    if told_by == "host":
        return meet_told(
            place, wanted, count, deadline, LOOPBACK, lambda text: rendezvous.tell_job(place, count, deadline, text)
        )
    if told_by == "mpi":
        try:
            world = mpi.world()
        except UnavailableError as error:
            raise UnavailableError(
                f"{error}. Without it, RINGREDUCE_ADDRESS and RINGREDUCE_SECRET_FILE tell the ranks where rank 0 "
                "listens"
            ) from error
        communicators.check_size(world, place)
        return meet_over_mpi(world, wanted, count, timeout_s)
    if told_by == "torchrun":
        names = [os.environ.get("MASTER_ADDR", "")]
        with contextlib.closing(ToldByStore(count, me, timeout_s)) as told:
            met = meet_told(place, wanted, count, told.deadline, names, told.tell)
            if place.rank == 0:
                told.forget()
            return met
    host, port = host_and_port(wanted.address)
    secret = _own_secret(place, wanted)
    gate = None
    if told_by == "slurm":
        host, port = slurm_step.first_node(os.environ), port or slurm_step.port(os.environ, users_ports())
        if place.rank == 0:
            _check_first_node(me, host)
            gate = listening_at(ip_of_name(host, me), port, place.size, me, deadline)
    meeting = TcpMeeting(host, port, secret, place.rank, place.size, count, wanted.transport)
    return meet(meeting, deadline, gate)


def meet_over_mpi(comm: Any, wanted: TcpWanted, count: int, timeout_s: float) -> Met:
    """As meet_ranks(), of the processes of a communicator of mpi4py. Collective over it."""
    communicators.check_communicator(comm)
    place = Placement(comm.Get_rank(), comm.Get_size(), 0, 1, 0, 1, "communicator", "")

    def tell(text: str | None) -> str:
        problem = None
        if wanted.secret_file:
            try:
                read_secret(wanted.secret_file)
            except InvalidArgumentError as error:
                problem = _short(str(error))
        mine = {"text": text, "problem": problem}
        records = communicators.exchange_records(comm, timeout_s, wanted.transport, mine)
        for rank, one in enumerate(records):
            if one["problem"] is not None:
                raise InvalidArgumentError(
                    f"[rendezvous] rank {place.rank}/{place.size}: rank {rank} on {one['name']}: {one['problem']}"
                )
        return str(records[0]["text"])

    return meet_told(place, wanted, count, Deadline(timeout_s), [], tell)


def meet_told(
    place: Placement,
    wanted: TcpWanted,
    count: int,
    deadline: Deadline,
    here: str | list[str],
    tell: Callable[[str | None], str],
) -> Met:
    """Rank 0 listens and tells where, and a new secret where the ranks know none. Collective over the ranks.

    Args:
        count: as each rank must say.
        here: the address to listen at if none is given, or names by which other hosts know rank 0's.
        tell: takes rank 0's text, None elsewhere; returns it on all ranks. Where the ranks know no secret, nobody else
            may read it. Called again where the deadline's check raises ToldAgainError.

    Raises: as meet_ranks().
    """
    me = f"[rendezvous] rank {place.rank}/{place.size}"
    gate: socket.socket | None = None
    listener: socket.socket | None = None
    if place.rank == 0:
        try:
            secret = _own_secret(place, wanted) if wanted.has_secret else os.urandom(32)
            host, port = host_and_port(wanted.address)
            host = host or (here if isinstance(here, str) else reachable_ip(here, me))
            gate = listening_at(host, port, place.size, me, deadline)
            listener = rank_listener(gate.getsockname()[0])
        except BaseException as error:  # also KeyboardInterrupt: the others wait for this text
            if gate is not None:
                gate.close()
            said = str(error) or type(error).__name__
            with contextlib.suppress(Error):  # who does not come is not told; that is not what has ended the meeting
                tell(json.dumps({"error": _short(said), "kind": type(error).__name__}))
            raise
    try:
        if gate is not None:
            host, port = gate.getsockname()[:2]
            told = {"address": address_text(host, port), "secret": None if wanted.has_secret else secret.hex()}
            tell(json.dumps(told))
        while True:
            with contextlib.suppress(ToldAgainError):
                if gate is None:
                    host, port, secret = _heard(tell(None), place, wanted, me, deadline)
                meeting = TcpMeeting(host, port, secret, place.rank, place.size, count, wanted.transport)
                return meet(meeting, deadline, gate, listener)
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    finally:
        if gate is not None:
            gate.close()


def _short(text: str) -> str:
    """So much of an error that a record of a rank has room for it, twice over, whatever JSON makes of it."""
    return text.encode("ascii", "backslashreplace")[:ERROR_CHARS].decode()


def _heard(text: str, place: Placement, wanted: TcpWanted, me: str, deadline: Deadline) -> tuple[str, int, bytes]:
    """Where rank 0 listens, and the secret."""
    try:
        told = json.loads(text)
        if "error" in told:
            deadline.check_for(STALE_S)
            raise told_error(str(told["kind"]), f"{me}: told by rank 0: {told['error']}")
        host, port = parse_address(told["address"])
        secret = None if told["secret"] is None else bytes.fromhex(told["secret"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, Error):
            raise
        # The text is not shown: it may hold a secret, under a name that this version does not know.
        raise MismatchError(
            f"{me}: what is told of rank 0 is not this version of ringreduce ({len(text)} characters, "
            f"{type(error).__name__}): do all hosts run one version?"
        ) from None
    if (secret is None) != wanted.has_secret:
        has, lacks = ("this rank", "rank 0") if wanted.has_secret else ("rank 0", "this rank")
        raise MismatchError(
            f"{me}: {has} has a RINGREDUCE_SECRET_FILE and {lacks} has none: set it on all ranks. Open MPI takes a "
            "variable to other hosts only when told: mpirun -x RINGREDUCE_SECRET_FILE"
        )
    return host, port, _own_secret(place, wanted) if secret is None else secret


def _own_secret(place: Placement, wanted: TcpWanted) -> bytes:
    """The key of this job. Raises InvalidArgumentError: there is no file, or it will not do."""
    if not wanted.has_secret:
        raise InvalidArgumentError(
            f"init(): address {wanted.address} is given, and no secret_file: without a secret anybody who reaches the "
            "port could join the job. Set RINGREDUCE_SECRET_FILE to a file that is the same on all hosts; make one "
            "with: " + NEW_SECRET
        )
    secret = wanted.secret or read_secret(wanted.secret_file)
    return mac(secret, b"job", environment.name_across_hosts(place.source, wanted.job).encode())


def _check_first_node(me: str, host: str) -> None:
    if os.environ.get("SLURM_NODEID", "0") != "0":
        raise InvalidArgumentError(
            f"{me}: this rank is not on the first node of the step, {host} (srun --distribution=arbitrary), where the "
            "others look for it: set RINGREDUCE_ADDRESS=host:port on all ranks, with an address of this host"
        )
