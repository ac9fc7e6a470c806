"""Rank 0's side of the rendezvous over TCP: it waits for all other ranks and answers all of them at once.

A stranger, who cannot prove that it knows the secret, is turned away, and the meeting goes on. A rank that disagrees or
leaves, or whose time is over, ends the meeting for everyone with the same error.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ringreduce.errors import (
    Error,
    HorovodInternalError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    TimeoutError,
    UnavailableError,
)
from ringreduce.job import places
from ringreduce.job.deadline import Deadline
from ringreduce.job.handshake import errno_text, same_mac
from ringreduce.job.tcp.listening_ports import ANY, addresses_of, listening
from ringreduce.job.tcp.rendezvous import (
    CHALLENGE_NBYTES,
    COME_AGAIN,
    HELLO_NBYTES,
    LATE_AFTER_LOSS_S,
    LATE_S,
    LENGTH,
    MAC_NBYTES,
    MAGIC,
    NONCE_NBYTES,
    RECORD_NBYTES_MOST,
    TIMED_OUT,
    TcpMeeting,
    address_text,
    mac,
    own_ports,
    own_record,
    rank_listener,
    sealed,
    session_key,
    unsealed,
)
from ringreduce.job.tcp.unproven import BROKEN, NO_ROOM, UNPROVEN_MOST, places_of_unproven

UNPROVEN_S = 5.0
"""Who has not proven within this time that it knows the secret is turned away."""
NO_ROOM_S = 2.0
"""How long rank 0 waits for a descriptor where ranks, and no strangers, have all of them."""
UNKNOWN_NAME_S = 0.25
"""How long rank 0 waits before it asks for its name again: a pod's name is known once the pod is ready."""
UNKNOWN = (socket.EAI_AGAIN, socket.EAI_NONAME, socket.EAI_NODATA)
TELL_SHARE = 0.2
"""Of the time for the meeting, which is left when rank 0 gives up its name."""
BUSY_PORT_S = 2.0
"""How long an earlier job may take to give the port back."""
TURN_S = 0.5
TURNED_AWAY = {
    "unproven": "did not know the job's secret, or {are} another job's",
    "late": f"did not prove within {UNPROVEN_S:g} s to know the job's secret, as ranks that are stopped",
    "other": "spoke something else than ringreduce",
    "silent": "said nothing, as port scans and health checks do",
}
"""What rank 0 says of callers that it has not let in, by the kind that Caller.kind() says."""
FIELDS = (
    dict.fromkeys(("rank", "size", "init_count", "port"), int)
    | dict.fromkeys(("name", "host", "build", "ip", "problem"), str)
    | {"settings": dict}
)
"""Of a record."""


class Caller:
    """A connection, and how far its handshake has come."""

    __slots__ = (
        "began_s",
        "buffer",
        "challenge",
        "connection",
        "hello",
        "init_count",
        "is_proven",
        "is_told",
        "rank",
        "record",
    )

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.hello = b""
        self.challenge = b""
        self.is_proven = False
        self.is_told = False
        self.init_count: int | None = None  # this and the next once its record is there, whatever else is in that
        self.rank: Any = None
        self.record: dict[str, Any] | None = None
        self.began_s = time.monotonic()

    def kind(self) -> str:
        """What has become of it, as of TURNED_AWAY; "" where that is none of these.

        A rank with another secret sees that from the challenge, and goes without a proof of its own.
        """
        if self.is_proven or (self.hello and is_of_another_version(self.hello)):
            return ""
        return "unproven" if self.challenge else "other" if self.hello or self.buffer else "silent"


def is_of_another_version(hello: bytes) -> bool:
    """Whether the caller is ringreduce, and not this version."""
    return hello.startswith(MAGIC[:-1]) and not hello.startswith(MAGIC)


def serve(
    meeting: TcpMeeting,
    deadline: Deadline,
    gate: socket.socket | None = None,
    listener: socket.socket | None = None,
    mine: dict[str, Any] | None = None,
) -> tuple[socket.socket, dict[str, Any], dict[str, Any]]:
    """Gathers the records of all ranks and tells all where they are.

    Args:
        gate: listens at the meeting's address already; closed here. None: it is made here.
        listener: this rank's for the others' connections; closed here where this fails. None: it is made here.
        mine: this rank's record, of places.own_record(). None: it is made here.

    Returns:
        This rank's listener for the others' connections, the answer that they were sent, and this rank's record.

    Raises: as meet().
    """
    with _Server(meeting, deadline, gate) as server, errno_text(meeting.me(), meeting.where()):
        listener = listener or rank_listener(server.ip)
        try:
            # Here, where the others are told what is wrong with this rank's settings.
            mine = mine or places.own_record(meeting.rank, meeting.size, meeting.transport)
            found = {0: own_record(meeting, mine, listener)} | server.gather()
            records = [found[rank] for rank in range(meeting.size)]
            answer = {
                "nonce": os.urandom(32).hex(),
                "hosts": places.host_labels(records),
                "addresses": [(one["ip"], one["port"]) for one in records],
                "distinct": places.distinct(records),
            }
            server.answer(answer)
        except BaseException:
            listener.close()
            raise
        return listener, answer, mine


class _Server:
    def __init__(self, meeting: TcpMeeting, deadline: Deadline, gate: socket.socket | None) -> None:
        self._meeting = meeting
        self._deadline = deadline
        self._callers: dict[socket.socket, Caller] = {}
        self._turned_away: Counter[str] = Counter()
        self._of_other_versions = 0
        self._has_no_room: Deadline | None = None
        self._listener = gate or listening_at(meeting.host, meeting.port, meeting.size, meeting.me(), deadline)
        try:
            self._places = places_of_unproven(meeting.size, meeting.size)
            self._selector = selectors.DefaultSelector()
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)
            self.ip: str = self._listener.getsockname()[0]
        except BaseException:
            self._listener.close()
            raise

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is not None:
            reason = error if isinstance(error, Error) else HorovodInternalError(f"{self._meeting.me()}: {error!r}")
            content = {"error": str(reason), "kind": type(reason).__name__}
            self._send(content, self._callers.values())
            is_loss = isinstance(reason, (PeerLostError, TimeoutError))
            self._tell_late_ones(content, LATE_AFTER_LOSS_S if is_loss else LATE_S)
        for caller in self._callers.values():
            caller.connection.close()
        self._listener.close()
        self._selector.close()

    def _tell_late_ones(self, content: dict[str, Any], late_s: float) -> None:
        """Ranks that are still on their way get the error too, of those that come within late_s: else each would look
        for rank 0 until its own deadline. One that has had it, and is at its next init(), is to come again.

        Nobody is waited for where this rank's time is over, or the deadline's check raises: the others' does as well.
        """
        late = Deadline(late_s)
        while True:
            for caller in self._callers.values():
                if caller.is_told and caller.connection in self._selector.get_map():
                    self._selector.unregister(caller.connection)  # it may go now
            told = sum(caller.is_told for caller in self._callers.values())
            if told >= self._meeting.size - 1 or late.expired() or self._deadline.expired():
                return
            try:
                self._deadline.check()
            except Error:
                return
            with contextlib.suppress(Error, OSError):  # a second error is not what the ranks are told
                self._turn(late, {})
            come = [caller for caller in self._callers.values() if caller.init_count is not None and not caller.is_told]
            heard = [caller.rank for caller in self._callers.values() if caller.is_told]
            ahead = [one for one in come if (one.init_count or 0) > self._meeting.init_count and one.rank in heard]
            self._send(COME_AGAIN, ahead)
            for caller in ahead:
                self._close(caller)
            self._send(content, come)

    def gather(self) -> dict[int, dict[str, Any]]:
        """Waits until every other rank has come. Returns their records.

        Raises TimeoutError, which names the missing ranks; MismatchError; PeerLostError; and as the deadline's check.
        """
        records: dict[int, dict[str, Any]] = {}
        while len(records) < self._meeting.size - 1:
            self._turn(self._deadline, records)
            if len(records) == self._meeting.size - 1:
                break
            self._deadline.check()  # after each turn, also one that has brought news: strangers may come without end
            if self._deadline.expired():
                raise self._timeout_error(records)
        return records

    def _turn(self, deadline: Deadline, records: dict[int, dict[str, Any]]) -> None:
        """Waits for news once, and does what there is to do. Raises what ends the meeting."""
        left = deadline.turn_s()
        events = self._selector.select(TURN_S if left is None else min(TURN_S, left))
        events.sort(key=lambda event: event[0].fileobj is self._listener)  # who has said something goes first
        for key, _ in events:
            if key.fileobj is self._listener:
                self._accept()
                continue
            caller = self._callers.get(key.fileobj)  # type: ignore[call-overload]
            if caller is not None:
                self._read(caller, records)
        self._turn_away_late_ones()

    def answer(self, content: dict[str, Any]) -> None:
        """Sends the answer to every rank. Raises PeerLostError when one is gone.

        Another process that has proven that it knows the secret, and has said nothing of itself yet, is none of them.
        """
        for caller in self._send(content, [one for one in self._callers.values() if one.record is not None]):
            assert caller.record is not None
            raise PeerLostError(f"{self._meeting.me()}: lost rank {caller.record['rank']} at the rendezvous")

    def _send(self, content: dict[str, Any], callers: Iterable[Caller]) -> list[Caller]:
        """Sends to each that has proven who it is, once. Returns those that could not be reached."""
        gone = []
        body = json.dumps(content).encode()
        for caller in callers:
            if not caller.is_proven or caller.is_told:
                continue
            caller.is_told = True
            key = session_key(self._meeting.secret, caller.hello, caller.challenge)
            caller.connection.settimeout(self._deadline.wait_s())
            try:
                caller.connection.sendall(sealed(key, b"answer", body))
            except OSError:
                gone.append(caller)
        return gone

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                self._make_room(error)
            elif error.errno not in BROKEN:
                raise
            return
        self._has_no_room = None
        connection.setblocking(False)
        unproven = self._unproven()
        if len(unproven) >= self._places:
            self._close(unproven[0])
        self._callers[connection] = Caller(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _unproven(self) -> list[Caller]:
        """Who has proven nothing: first who has said nothing, and of those first who came first."""
        unproven = [caller for caller in self._callers.values() if not caller.is_proven]
        return sorted(unproven, key=lambda caller: (bool(caller.hello), caller.began_s))

    def _make_room(self, error: OSError) -> None:
        """The connection stays in the queue. Raises the error where ranks alone have had all room for some time."""
        unproven = self._unproven()
        if unproven:
            return self._close(unproven[0])
        self._has_no_room = self._has_no_room or Deadline(NO_ROOM_S)
        if self._has_no_room.expired():
            raise error
        time.sleep(1e-2)
        return None

    def _turn_away_late_ones(self) -> None:
        now_s = time.monotonic()
        for caller in list(self._callers.values()):
            if not caller.is_proven and now_s - caller.began_s > UNPROVEN_S:
                kind = caller.kind()
                self._turn_away(caller, "late" if kind == "unproven" else kind)

    def _turn_away(self, caller: Caller, kind: str | None = None) -> None:
        self._turned_away[caller.kind() if kind is None else kind] += 1
        self._close(caller)

    def _close(self, caller: Caller) -> None:
        """Without blame: to make room, say. A rank comes again."""
        self._selector.unregister(caller.connection)
        del self._callers[caller.connection]
        caller.connection.close()

    def _read(self, caller: Caller, records: dict[int, dict[str, Any]]) -> None:
        try:
            part = caller.connection.recv(RECORD_NBYTES_MOST)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        if not part:
            if caller.record is not None:
                raise self._peer_lost_error(caller.record, records)
            return self._turn_away(caller)
        caller.buffer += part
        if not caller.challenge and len(caller.buffer) >= HELLO_NBYTES and not self._challenge(caller):
            return self._turn_away(caller)
        if caller.challenge and not caller.is_proven and len(caller.buffer) >= MAC_NBYTES and not self._prove(caller):
            return self._turn_away(caller)
        if caller.is_proven and caller.record is None:
            self._read_record(caller, records)
        if caller.record is not None and caller.buffer:
            self._read_last_word(caller, caller.record, records)
        if len(caller.buffer) > LENGTH.size + RECORD_NBYTES_MOST + MAC_NBYTES:
            self._turn_away(caller)
        return None

    def _challenge(self, caller: Caller) -> bool:
        """Answers a HELLO. Whether it was one."""
        caller.hello, caller.buffer = caller.buffer[:HELLO_NBYTES], caller.buffer[HELLO_NBYTES:]
        if not caller.hello.startswith(MAGIC):
            if is_of_another_version(caller.hello):  # it knows the beginning of an answer
                self._of_other_versions += 1
                with contextlib.suppress(OSError):
                    caller.connection.send(MAGIC.ljust(CHALLENGE_NBYTES, b"\0"))
            return False
        nonce = os.urandom(NONCE_NBYTES)
        caller.challenge = MAGIC + nonce + mac(self._meeting.secret, b"server", caller.hello, nonce)
        try:
            caller.connection.send(caller.challenge)
        except OSError:
            return False
        return True

    def _prove(self, caller: Caller) -> bool:
        """Whether the caller knows the secret."""
        proof, caller.buffer = caller.buffer[:MAC_NBYTES], caller.buffer[MAC_NBYTES:]
        caller.is_proven = same_mac(proof, mac(self._meeting.secret, b"caller", caller.hello, caller.challenge))
        return caller.is_proven

    def _message(self, caller: Caller, label: bytes, what: str) -> Any:
        """The content of the caller's next message; None while it is not all there. what: its name in an error."""
        if len(caller.buffer) < LENGTH.size:
            return None
        (nbytes,) = LENGTH.unpack_from(caller.buffer)
        if nbytes > RECORD_NBYTES_MOST:
            raise MismatchError(f"{self._meeting.me()}: {what.format(nbytes=nbytes)}")
        end = LENGTH.size + nbytes
        if len(caller.buffer) < end + MAC_NBYTES:
            return None
        body, seal = caller.buffer[LENGTH.size : end], caller.buffer[end : end + MAC_NBYTES]
        caller.buffer = caller.buffer[end + MAC_NBYTES :]
        return unsealed(session_key(self._meeting.secret, caller.hello, caller.challenge), label, body, seal)

    def _read_last_word(self, caller: Caller, record: dict[str, Any], records: dict[int, dict[str, Any]]) -> None:
        """A rank says nothing after its record, unless its time is over; then it is told who is missing."""
        who = f"rank {record['rank']}"
        waited_s = self._message(caller, TIMED_OUT, f"{who} announces a message of {{nbytes}} bytes after its record")
        if waited_s is None:
            return
        if type(waited_s) not in (int, float) or caller.buffer:
            raise MismatchError(f"{self._meeting.me()}: {who} says more than its record")
        if len(records) < self._meeting.size - 1:  # else the answer is on its way
            raise self._timeout_error(records, waited_s)

    def _read_record(self, caller: Caller, records: dict[int, dict[str, Any]]) -> None:
        record = self._message(caller, b"record", "a rank announces a record of {nbytes} bytes")
        if record is None:
            return
        count = record.get("init_count") if isinstance(record, dict) else None
        caller.init_count = count if isinstance(count, int) else 0
        caller.rank = record.get("rank") if isinstance(record, dict) else None
        problem = self._disagreement(record, records)
        if problem is not None:
            raise MismatchError(f"{self._meeting.me()}: {problem}")
        if record["problem"]:
            where = f"rank {record['rank']} on {record['name']}"
            raise UnavailableError(f"{self._meeting.me()}: {where}: {record['problem']}")
        caller.record = records[record["rank"]] = record

    def _disagreement(self, record: dict[str, Any], records: dict[int, dict[str, Any]]) -> str | None:
        meeting = self._meeting
        for field, kind in FIELDS.items():
            if not isinstance(record, dict) or type(record.get(field)) is not kind:
                return f"a rank has sent a record without a valid {field!r}: do all hosts run one version?"
        who = f"rank {record['rank']} on {record['name']}"
        if record["size"] != meeting.size:
            return f"{who} says the job has {record['size']} ranks, rank 0 says {meeting.size}"
        if record["init_count"] != meeting.init_count:
            return (
                f"{who} is at its init() number {record['init_count']}, rank 0 at number {meeting.init_count}: all "
                "ranks must call init() and shutdown() equally often"
            )
        if record["rank"] == 0 or record["rank"] in records:
            other = os.uname().nodename if record["rank"] == 0 else records[record["rank"]]["name"]
            return f"two processes say they are rank {record['rank']}, on {other} and on {record['name']}"
        if not 0 < record["rank"] < meeting.size:
            return f"{who} is not one of {meeting.size} ranks"
        return None

    def _missing(self, records: dict[int, dict[str, Any]]) -> str:
        """The ranks that have not come, in words; "" where all have."""
        missing = [rank for rank in range(1, self._meeting.size) if rank not in records]
        shown = ", ".join(map(str, missing[:16])) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
        return f"rank{'s' if len(missing) > 1 else ''} {shown}" if missing else ""

    def _peer_lost_error(self, record: dict[str, Any], records: dict[int, dict[str, Any]]) -> PeerLostError:
        missing = self._missing(records)
        waiting = f" while {missing} had not come" if missing else ""
        return PeerLostError(f"{self._meeting.me()}: lost rank {record['rank']} at the rendezvous{waiting}")

    def _timeout_error(self, records: dict[int, dict[str, Any]], waited_s: float | None = None) -> TimeoutError:
        """waited_s: how long a rank has waited whose time is over; None: it is this one's that is over."""
        strangers = ""
        for kind, what in TURNED_AWAY.items():
            if count := self._turned_away[kind]:
                few = count == 1
                strangers += f" {count} connection{'' if few else 's'} {what.format(are='is' if few else 'are')}."
        if self._of_other_versions:
            strangers += " Other versions of ringreduce have called: install one version on all hosts."
        if self.ip != self._meeting.host:
            strangers += f" Rank 0 listens at {self.ip}."
        if self.ip.startswith("127.") or self.ip == "::1":
            strangers += f" Other hosts cannot reach {self.ip}: give an address of this host in numbers."
        return TimeoutError(
            f"{self._meeting.me()}: {self._missing(records)} did not come to {self._meeting.where()} within "
            f"{self._deadline.timeout_s if waited_s is None else waited_s:g} s.{strangers}"
        )


def listening_at(host: str, port: int, size: int, me: str, deadline: Deadline) -> socket.socket:
    """A socket that listens at this address of this host for so many ranks; port 0 is any that is free, or one of
    RINGREDUCE_PORTS.

    me: how messages begin.

    Raises:
        InvalidArgumentError: it is no address of this host, or one of all interfaces.
        MismatchError: another process listens there.
        UnavailableError: no file descriptor is left, or no port of RINGREDUCE_PORTS.
    """
    where = address_text(host, port)
    with errno_text(me, where):
        if port == 0 and (ports := own_ports()) != ANY:
            return listening(host, ports, size + UNPROVEN_MOST)
        return _listening_at(host, port, where, size + UNPROVEN_MOST, me, deadline)


def _listening_at(host: str, port: int, where: str, backlog: int, me: str, deadline: Deadline) -> socket.socket:
    busy = Deadline(BUSY_PORT_S)
    while True:
        try:
            usable = addresses_of(host, port)
        except OSError as error:
            may_come = isinstance(error, socket.gaierror) and error.errno in UNKNOWN and not _is_number(host)
            # The other ranks have to be told, and wait as long as this one.
            if not may_come or deadline.remaining_s() <= deadline.timeout_s * TELL_SHARE:
                raise InvalidArgumentError(
                    f"{me}: the name in {where} is not known on rank 0's host, {os.uname().nodename}: {error}"
                ) from None
            time.sleep(min(UNKNOWN_NAME_S, deadline.remaining_s()))
            continue
        reason: OSError | None = None
        if not usable:
            raise InvalidArgumentError(
                f"{me}: {where} is not the address of one interface that all hosts know: give one of rank 0's own "
                "addresses, and no link-local one"
            )
        for family, kind, protocol, address in usable:
            try:
                return _listener(family, kind, protocol, address, backlog)
            except OSError as error:  # also of a family that this kernel has not, such as IPv6 where that is off
                if reason is None or reason.errno != errno.EADDRINUSE:
                    reason = error.with_traceback(None)  # which would keep this frame, and its callers'
        if reason is not None and reason.errno != errno.EADDRINUSE:
            raise InvalidArgumentError(
                f"{me}: cannot listen at {where}: {reason}. The address has to be one of rank 0's own host, which the "
                "other hosts can reach"
            )
        if busy.expired() or deadline.expired():
            raise MismatchError(
                f"{me}: another process listens at {where} already: give RINGREDUCE_ADDRESS another port, on all ranks"
            )
        with contextlib.suppress(InterruptedError):
            time.sleep(1e-2)


def _listener(family: int, kind: int, protocol: int, address: Any, backlog: int) -> socket.socket:
    listener = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)  # two sockets may be bound to one port while none of them listens
    except BaseException:
        listener.close()
        raise
    return listener


def _is_number(host: str) -> bool:
    """Whether it is an address, or is meant to be: no name ends in a part that is a number (RFC 1123)."""
    return ":" in host or host.rpartition(".")[2].isdecimal()
