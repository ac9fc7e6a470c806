"""How ranks that share a key-value store come to be a group: those of torch.distributed, whatever has started them.

Rank 0 names the meeting. Each rank writes where it is. Rank 0 reads all of that and answers: on one host, where the
ranks meet (rendezvous.py); on several, that they meet over TCP, and then where rank 0 listens for them (tcp/job.py).
Others may write into the store: between hosts a rank believes what it reads there once a proof of the job's secret has
shown it to be true. The store may hold what ranks before these have left there, those for instance that torchrun has
ended and started again: a rank believes an answer that repeats the nonce of its own record. An error may have been told
before rank 0 has read the record: that one is believed where nothing else is told for STALE_S.
"""

from __future__ import annotations

import builtins
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ringreduce import config, state
from ringreduce.errors import Error, MismatchError, TimeoutError, UnavailableError
from ringreduce.job import rendezvous
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.handshake import same_mac, told_error
from ringreduce.job.places import HOST_NAME_CHARS, TcpWanted
from ringreduce.job.tcp.job import LOOPBACK, NEW_SECRET, host_and_port, meet_told
from ringreduce.job.tcp.rendezvous import NONCE_NBYTES, STALE_S, mac, read_secret

if TYPE_CHECKING:
    from ringreduce import _core

STORE_KEY = "ringreduce/rendezvous"
"""Holds the name of the meeting; the keys of its records, its answer and rank 0's address begin with both."""
TAG_NBYTES = 16
LOOK_S = 0.1
"""How often, at last, a rank that waits for rank 0's answer looks for it, and whether another meeting is named."""
OF_ONE_HOST = {"auto", "shm", "shm+tcp", "mpi"}
"""Values of RINGREDUCE_TRANSPORT with which ranks of one host share memory, in such groups."""
_remembered = b""


class Store(Protocol):
    """A key-value store that all ranks of one group, and nobody else, read and write."""

    def set(self, key: str, value: bytes) -> None:
        """Makes value visible to all ranks."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the key. Raises the builtin TimeoutError after timeout_s seconds; 0 = no limit."""

    def has(self, key: str) -> bool:
        """Whether the key is there. Waits LOOK_S at most; a store that has not answered by then has it not yet."""

    def silent(self) -> str:
        """Where the store is that does not answer; "" where it does."""


class JoinedGroup:
    """What a rank of the group holds after the rendezvous; its owner closes it.

    Attributes:
        memory: of the ranks of this host.
        hosts: by rank, the lowest rank on the same host; None where all are on this one.
        tcp: the connections to other hosts, or None.
    """

    def __init__(
        self, memory: rendezvous.Joined, hosts: list[int] | None = None, tcp: _core.TcpNetwork | None = None
    ) -> None:
        self.memory = memory
        self.hosts = hosts
        self.tcp = tcp

    def close(self) -> None:
        """Closes what no context has taken. Idempotent."""
        self.memory.close()
        self.tcp = None


def remember_secret(secret: bytes) -> None:
    """Has the groups of this process that are on several hosts take this secret, where there is no file.

    secret: known to all ranks of this process's job, and to nobody else.
    """
    global _remembered
    _remembered = secret


def join_with_store(
    store: Store,
    rank: int,
    size: int,
    timeout_s: float,
    segment: Callable[[], int],
    *,
    group: str,
    names: Sequence[str] = (),
    check: Callable[[], None] | None = None,
) -> JoinedGroup:
    """Meets the other ranks of a group that shares a store. Collective over the group; once per store.

    Args:
        timeout_s: seconds until all ranks must have come; 0 = no limit.
        segment: makes the control memory file; called on one rank of each host, once all its ranks have connected.
        group: what all members know of the group, and not from the store: its name, and who is in it. Ranks of two
            groups do not meet whatever the store says.
        names: of hosts, that of the store for instance: how this host is seen from there is tried first, where rank 0
            has to listen for other hosts.
        check: raises when a member will not come any more; called while this rank waits for others.

    Raises:
        TimeoutError: names the missing ranks.
        UnavailableError: the ranks are on several hosts, and RINGREDUCE_TRANSPORT does not allow TCP, or there is no
            secret or no port.
        InvalidArgumentError: the secret file will not do, or rank 0 has no address that other hosts reach.
        MismatchError: ranks disagree about the group, or have other secrets. PeerLostError: a rank died on the way.
    """
    meeting = _StoreMeeting(store, rank, size, Deadline(timeout_s, check), group)
    answer = meeting.answer()
    if "tag" in answer:
        return meeting.over_tcp(answer["tag"], list(names), segment)
    try:
        address, secret = bytes.fromhex(answer["address"]), bytes.fromhex(answer["secret"])
    except (KeyError, TypeError, ValueError):
        raise _another_version(meeting.me, 0) from None
    secret = mac(secret, b"store", group.encode())
    return JoinedGroup(rendezvous.join_at(address, secret, rank, size, meeting.deadline, segment))


class _StoreMeeting:
    """One rank's part in the meeting."""

    def __init__(self, store: Store, rank: int, size: int, deadline: Deadline, group: str) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._group = group
        self._transport = config.value("RINGREDUCE_TRANSPORT").value.lower()
        self._is_one_host = False  # on rank 0, once it has decided
        self._secret = b""  # what there is for connections between hosts
        self._name = ""  # of the meeting
        self.deadline = deadline
        self.me = f"[rendezvous] rank {rank}/{size}"

    def answer(self) -> dict[str, Any]:
        """What rank 0 answers to all ranks. Raises the error that it tells."""
        if self._rank == 0:
            return self._own_answer()
        answer = None
        while answer is None:
            self._name = self._get(STORE_KEY, 0).decode(errors="replace")
            record = self._record()
            self._store.set(self._key(str(self._rank)), json.dumps(record).encode())
            answer = self._answer_to(record["nonce"])
        if "error" in answer:
            raise told_error(str(answer.get("kind")), f"{self.me}: told by rank 0: {answer['error']}")
        return answer

    def _own_answer(self) -> dict[str, Any]:
        """Rank 0's, once all records are there."""
        self._name = os.urandom(TAG_NBYTES).hex()
        self._store.set(STORE_KEY, self._name.encode())
        answer: dict[str, Any] = {}
        records: list[dict[str, Any]] = []
        try:
            records.append(self._record())
            records.extend(self._read(self._key(str(other)), other) for other in range(1, self._size))
            answer = self._decided(records)
        except BaseException as error:
            answer = {"error": str(error) or type(error).__name__, "kind": type(error).__name__}
            raise
        finally:
            answer["to"] = [record.get("nonce") for record in records]
            self._store.set(self._key("answer"), json.dumps(answer).encode())
        return answer

    def _answer_to(self, nonce: str) -> dict[str, Any] | None:
        """Rank 0's answer to the record with that nonce, or an error that it has told before it read the record.

        Returns None where rank 0 has named another meeting: the one of this record was of ranks before these.
        """
        pause_s = 1e-3
        believed_s = time.monotonic() + STALE_S  # from when on an error that was told before may be of this meeting
        while self._get(STORE_KEY, 0).decode(errors="replace") == self._name:
            answer = self._read_answer()
            is_late = self.deadline.expired()
            if answer is not None and nonce in answer["to"]:
                return answer
            if answer is not None and "error" in answer and (is_late or time.monotonic() > believed_s):
                return answer
            if is_late:
                raise self._silent() or TimeoutError(
                    f"{self.me}: rank 0 has come to the group's store, and has not answered within "
                    f"{self.deadline.timeout_s:g} s: other ranks have not come, or it is stopped"
                )
            self.deadline.check()
            time.sleep(min(pause_s, self.deadline.remaining_s()))
            pause_s = min(2 * pause_s, LOOK_S)
        return None

    def _read_answer(self) -> dict[str, Any] | None:
        """What rank 0 has answered in the meeting of that name; None if it has not yet."""
        if not self._store.has(self._key("answer")):
            return None
        answer = self._read(self._key("answer"), 0)
        if not isinstance(answer.get("to"), list):
            raise _another_version(self.me, 0)
        return answer

    def over_tcp(self, tag: Any, names: list[str], segment: Callable[[], int]) -> JoinedGroup:
        """Meets the ranks of all hosts, and then those of this one."""
        if not isinstance(tag, str) or not tag.isalnum() or not tag.isascii() or len(tag) != 2 * TAG_NBYTES:
            raise _another_version(self.me, 0)
        # Not the store's word alone: what a stranger writes there must bring no two groups together.
        job = f"group {tag} {os.environ.get('TORCHELASTIC_RUN_ID', '')} {self._group}"
        wanted = TcpWanted("", "", self._transport, job, self._secret or _secret(self._transport))
        place = Placement(self._rank, self._size, 0, 1, 0, 1, "store", "")
        here = LOOPBACK if self._is_one_host else [*_users_host(), *names] if self._rank == 0 else []
        met = meet_told(place, wanted, 0, self.deadline, here, self._tell)
        try:
            memory = rendezvous.join_placed(met.placed, self.deadline, segment)
            try:
                return JoinedGroup(memory, met.placed.hosts, met.network())
            except BaseException:
                memory.close()
                raise
        finally:
            met.listener.close()

    def _record(self) -> dict[str, str]:
        """What this rank says of itself."""
        record = {
            "host": rendezvous.host_identity().decode(),
            "name": os.uname().nodename[:HOST_NAME_CHARS],
            "transport": self._transport,
            "problem": "",
            "kind": "",
            "nonce": os.urandom(NONCE_NBYTES).hex(),
            "proof": "",
        }
        try:
            config.choice("RINGREDUCE_TRANSPORT")
            _users_host()
            self._secret = _secret(self._transport)
            record["proof"] = _proof(self._secret, record["nonce"])
        except Error as error:
            record |= {"problem": str(error), "kind": type(error).__name__}
        return record

    def _decided(self, records: list[dict[str, Any]]) -> dict[str, Any]:
        """Rank 0's answer to the records of all ranks. Raises what all are told."""
        for rank, record in enumerate(records):
            if any(not isinstance(record.get(key), str) for key in records[0]) or not record["proof"].isascii():
                raise _another_version(self.me, rank)
        self._is_one_host = len({record["host"] for record in records}) == 1
        transports = {record["transport"] for record in records}
        if self._size == 1:
            config.choice("RINGREDUCE_TRANSPORT")  # it connects nothing here; of more ranks, records tell the problem
        if self._is_one_host and (self._size == 1 or transports <= OF_ONE_HOST):
            address, secret = rendezvous.new_address()
            return {"address": address.hex(), "secret": secret.hex()}
        for rank, record in enumerate(records):
            where = f"rank {rank}, on {record['name']}"
            if record["transport"] != self._transport:
                raise MismatchError(
                    f"{self.me}: RINGREDUCE_TRANSPORT is {self._transport} on this rank, and {record['transport']} on "
                    f"{where}: give all ranks the same"
                )
            if record["problem"]:
                raise told_error(record["kind"], f"{self.me}: {_where(records)}. Rank {rank}: {record['problem']}")
            if not same_mac(record["proof"].encode(), _proof(self._secret, record["nonce"]).encode()):
                raise MismatchError(
                    f"{self.me}: {where}, has another secret than this rank: RINGREDUCE_SECRET_FILE has to be set on "
                    "all ranks or on none, and the file has to be the same on all hosts"
                )
        return {"tag": os.urandom(TAG_NBYTES).hex()}

    def _tell(self, text: str | None) -> str:
        """Rank 0's text, on all ranks; None elsewhere. The store is no secret."""
        if text is None:
            return self._get(self._key("listens"), 0).decode(errors="replace")
        self._store.set(self._key("listens"), text.encode())
        return text

    def _key(self, part: str) -> str:
        return f"{STORE_KEY}/{self._name}/{part}"

    def _read(self, key: str, other: int) -> dict[str, Any]:
        """A value that another rank has written. Raises MismatchError where it is not JSON of an object."""
        try:
            value = json.loads(self._get(key, other))
        except (ValueError, RecursionError):  # not JSON, not UTF-8, or nested without end
            value = None
        if not isinstance(value, dict):
            raise _another_version(self.me, other)
        return value

    def _get(self, key: str, other: int) -> bytes:
        pause_s = 1e-4
        while self.deadline.has_check and not self._store.has(key):
            self.deadline.check()
            if self.deadline.expired():
                raise self._missing(other)
            time.sleep(min(pause_s, self.deadline.remaining_s()))
            pause_s = min(2 * pause_s, LOOK_S)
        try:
            return self._store.get(key, self.deadline.wait_s() or 0.0)
        except builtins.TimeoutError:
            raise self._missing(other) from None

    def _missing(self, other: int) -> TimeoutError:
        within = f"within {self.deadline.timeout_s:g} s"
        return self._silent() or TimeoutError(f"{self.me}: rank {other} did not come to the group's store {within}")

    def _silent(self) -> TimeoutError | None:
        """That the store does not answer, where it does not."""
        where = self._store.silent()
        if not where:
            return None
        return TimeoutError(
            f"{self.me}: the group's store at {where} does not answer within {self.deadline.timeout_s:g} s: is the "
            "process that keeps it stopped (torchrun's agent, or rank 0), or its host gone?"
        )


def _secret(transport: str) -> bytes:
    """The secret by which the group's hosts are connected.

    Raises UnavailableError where TCP is not allowed or there is no secret, InvalidArgumentError where its file will not
    do.
    """
    if transport in ("shm", "mpi"):
        raise UnavailableError(
            f"RINGREDUCE_TRANSPORT={transport}: hosts of such a group are connected by TCP; leave the variable at auto"
        )
    if file := os.path.expanduser(config.value("RINGREDUCE_SECRET_FILE").value):
        return read_secret(file)
    reached = state.current.reached if state.current is not None else None
    if secret := reached.secret if reached is not None else _remembered:
        return secret
    raise UnavailableError(
        "hosts are connected by TCP, which needs the job's secret: set RINGREDUCE_SECRET_FILE to a file that is the "
        f"same on all hosts; make one with: {NEW_SECRET}. Or start by `ringrun -H`, which hands one out, or by mpirun "
        'with init_process_group("ringreduce", init_method="ringreduce://")'
    )


def _proof(secret: bytes, nonce: str) -> str:
    """That a rank has the secret; it tells no more of that than what each caller at rank 0's port is sent."""
    return mac(secret, b"record", nonce.encode(errors="replace")).hex()


def _users_host() -> list[str]:
    """The host in RINGREDUCE_ADDRESS, where there is one: an address of it is taken where it is this one's."""
    host, _ = host_and_port(config.value("RINGREDUCE_ADDRESS").value)
    return [host] if host else []


def _where(records: list[dict[str, Any]]) -> str:
    if len({record["host"] for record in records}) == 1:
        return "each rank of this group is a host of its own (RINGREDUCE_TRANSPORT=tcp)"
    ranks = ", ".join(f"rank {rank} on {record['name']}" for rank, record in enumerate(records[:16]))
    return f"the ranks of this group are on several hosts ({ranks}{', ...' if records[16:] else ''})"


def _another_version(me: str, rank: int) -> MismatchError:
    # The text is not shown: it may hold a secret, under a name that this version does not know.
    return MismatchError(
        f"{me}: what rank {rank} has written into the store is not this version of ringreduce: do all hosts run one "
        "version?"
    )
