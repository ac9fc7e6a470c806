"""By which address the hosts of a job reach rank 0's: those that it could have, tried from all other hosts.

Whoever answers at an address may be another machine, since private networks (docker0) have the same addresses on many
hosts. So the caller sends 32 random bytes, and believes only who answers with their HMAC under the key of this launch.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from ringreduce.errors import UnavailableError
from ringreduce.job.tcp.listening_ports import addresses_of, first_free
from ringreduce.job.tcp.unproven import NO_ROOM, places_of_unproven

NONCE_NBYTES = 32
MAC_NBYTES = 32
TRY_S = 3.0
AGAIN_S = 0.02
"""How long a caller waits that was turned away."""


def mac(key: bytes, nonce: bytes) -> bytes:
    """The answer to a caller."""
    return hmac.digest(key, b"ringreduce address" + nonce, "sha256")


class Gate:
    """Answers callers at some addresses of this host, and keeps the ports until close() for rank 0.

    Where there is no room for one more, the caller goes that has been silent longest: it comes again if it is a host of
    the job, and nobody keeps the others out by being silent.

    Args:
        hosts: addresses, or names with one or more.
        ports: it takes the first that is free at each address.
        selector: calls what answers.
        others: how many hosts look for this one, each at all addresses at a time.
    """

    def __init__(
        self, key: bytes, hosts: Sequence[str], ports: range, selector: selectors.BaseSelector, others: int
    ) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.refused: dict[str, str] = {}
        """Why nobody can be found at an address, or by a name."""
        self._key = key
        self._selector = selector
        self._kept: list[socket.socket] = []
        self._listeners: list[socket.socket] = []
        self._callers: dict[socket.socket, bytes] = {}
        own = self._addresses_of(hosts)
        self._places = places_of_unproven(others * len(own))
        for ip in own:
            try:
                first_free(ports, ip, partial(self._listen, ip))
            except OSError as error:
                self.refused[ip] = error.strerror or str(error)
            except UnavailableError as error:
                self.refused[ip] = str(error)

    def close_to_callers(self) -> None:
        """Answers nobody any more. Rank 0 can listen now; nobody else gets its port."""
        for each in (*self._listeners, *self._callers):
            self._selector.unregister(each)
            each.close()
        self._listeners.clear()
        self._callers.clear()

    def close(self) -> None:
        """Frees the ports, too. Idempotent."""
        self.close_to_callers()
        for each in self._kept:
            each.close()
        self._kept.clear()

    def _addresses_of(self, hosts: Sequence[str]) -> list[str]:
        """All addresses, each once, in their order."""
        found: dict[str, None] = {}
        for host in hosts:
            try:
                addresses = [str(address[0]) for _, _, _, address in addresses_of(host, 0)]
            except OSError as error:
                self.refused[host] = error.strerror or str(error)
                continue
            if not addresses:
                self.refused[host] = "it is not the address of one interface that all hosts know"
            found |= dict.fromkeys(addresses)
        return list(found)

    def _listen(self, ip: str, port: int) -> None:
        """Several sockets may be bound to a port, while one of them at most listens."""
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        with contextlib.ExitStack() as undo:
            kept, listener = (
                undo.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)) for _ in range(2)
            )
            for each in (kept, listener):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind((ip, port))
            listener.bind(kept.getsockname())
            listener.listen(self._places)
            undo.pop_all()
        self._kept.append(kept)
        self._listeners.append(listener)
        self.addresses.append(kept.getsockname()[:2])
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._on_caller(listener))

    def _on_caller(self, listener: socket.socket) -> None:
        if len(self._callers) >= self._places:
            self._make_room()
        try:
            caller, _ = listener.accept()
        except OSError as error:  # it has gone, or there is no descriptor for it
            if error.errno in NO_ROOM and not self._make_room():
                time.sleep(AGAIN_S)
            return
        caller.setblocking(False)
        self._callers[caller] = b""
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._on_nonce(caller))

    def _make_room(self) -> bool:
        """Whether the oldest caller could go: answered, if it has said something, which was not read yet."""
        oldest = next(iter(self._callers), None)
        if oldest is None:
            return False
        self._on_nonce(oldest)
        if oldest in self._callers:
            self._turn_away(oldest)
        return True

    def _on_nonce(self, caller: socket.socket) -> None:
        try:
            more = caller.recv(NONCE_NBYTES - len(self._callers[caller]))
            self._callers[caller] += more
            if more and len(self._callers[caller]) < NONCE_NBYTES:
                return
            if more:
                caller.send(mac(self._key, self._callers[caller]))
        except BlockingIOError:
            return
        except OSError:  # it has gone
            pass
        self._turn_away(caller)

    def _turn_away(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()


def reasons_against(key: bytes, addresses: Sequence[tuple[str, int]], timeout_s: float = TRY_S) -> list[str]:
    """Tries all addresses at a time. For each: "" where the host with this key is found, else why not."""
    callers = [_Caller(key, address) for address in addresses]
    until = time.monotonic() + timeout_s
    with selectors.PollSelector() as selector:
        while any(caller.reason is None for caller in callers) and (now := time.monotonic()) < until:
            next_s = until
            for caller in callers:
                if caller.again_s <= now:
                    caller.begin(selector)
                next_s = min(next_s, caller.again_s)
            for item, _ in selector.select(next_s - now):
                item.data()
        for caller in callers:
            if caller.reason is None:
                how = ": connections are ended there" if caller.was_turned_away else ""
                caller.end(f"no answer within {timeout_s:g} s{how}")
    return [str(caller.reason) for caller in callers]


class _Caller:
    """Calls one address, again and again where a gate without room for it turns it away."""

    def __init__(self, key: bytes, address: tuple[str, int]) -> None:
        self.reason: str | None = None
        self.again_s = 0.0
        """When (monotonic) to begin."""
        self.was_turned_away = False
        self._nonce = os.urandom(NONCE_NBYTES)
        self._right = mac(key, self._nonce)
        self._address = address
        self._answer = b""
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None

    def begin(self, selector: selectors.BaseSelector) -> None:
        self.again_s = math.inf
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(self._address)
        except OSError as error:
            self.end(error.strerror or str(error))
            return
        self._selector = selector
        selector.register(self._socket, selectors.EVENT_WRITE, self._guarded(self._on_connected))

    def end(self, reason: str) -> None:
        self.reason = reason
        self.again_s = math.inf
        self._hang_up()

    def _hang_up(self) -> None:
        if self._selector is not None and self._socket is not None:
            self._selector.unregister(self._socket)
        if self._socket is not None:
            self._socket.close()
        self._socket = self._selector = None

    def _come_again(self) -> None:
        """The connection has ended before all of an answer was there. Whoever listens there may have had no room."""
        self._hang_up()
        self._answer = b""
        self.was_turned_away = True
        self.again_s = time.monotonic() + AGAIN_S

    def _guarded(self, handle: Callable[[socket.socket], None]) -> Callable[[], None]:
        def guarded() -> None:
            assert self._socket is not None
            try:
                handle(self._socket)
            except BlockingIOError:
                return
            except OSError as error:
                if isinstance(error, ConnectionError) and error.errno != errno.ECONNREFUSED:
                    self._come_again()
                else:
                    self.end(error.strerror or str(error))

        return guarded

    def _on_connected(self, connection: socket.socket) -> None:
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        connection.send(self._nonce)
        assert self._selector is not None
        self._selector.modify(connection, selectors.EVENT_READ, self._guarded(self._on_answer))

    def _on_answer(self, connection: socket.socket) -> None:
        more = connection.recv(MAC_NBYTES - len(self._answer))
        self._answer += more
        if more and len(self._answer) < MAC_NBYTES:
            return
        if not more:
            self._come_again()
            return
        self.end("" if hmac.compare_digest(self._answer, self._right) else "another program, or machine, answers")
