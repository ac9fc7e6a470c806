"""By which address the hosts of a job reach rank 0's: those that it could have, tried from all other hosts.

Whoever answers at an address may be another machine, since private networks (docker0) have the same addresses on many
hosts. So the caller sends 32 random bytes, and believes only who answers with their HMAC under the key of this launch.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from ringreduce.errors import UnavailableError
from ringreduce.job.tcp.listening_ports import first_free

NONCE_NBYTES = 32
MAC_NBYTES = 32
TRY_S = 3.0
CALLERS_MOST = 256


def mac(key: bytes, nonce: bytes) -> bytes:
    """The answer to a caller."""
    return hmac.digest(key, b"ringreduce address" + nonce, "sha256")


class Gate:
    """Answers callers at some addresses of this host, and keeps the ports until close() for rank 0.

    Args:
        ports: it takes the first that is free at each address.
        selector: calls what answers.
    """

    def __init__(self, key: bytes, hosts: Sequence[str], ports: range, selector: selectors.BaseSelector) -> None:
        self.addresses: list[tuple[str, int]] = []
        self.refused: dict[str, str] = {}
        """Why nobody can be found at an address."""
        self._key = key
        self._selector = selector
        self._kept: list[socket.socket] = []
        self._listeners: list[socket.socket] = []
        self._callers: dict[socket.socket, bytes] = {}
        for host in hosts:
            try:
                first_free(ports, host, partial(self._listen, host))
            except OSError as error:
                self.refused[host] = error.strerror or str(error)
            except UnavailableError as error:
                self.refused[host] = str(error)

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

    def _listen(self, host: str, port: int) -> None:
        """Several sockets may be bound to a port, while one of them at most listens."""
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as undo:
            pair = [undo.enter_context(socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)) for _ in range(2)]
            kept, listener = pair
            for each in pair:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(address)
            listener.bind(kept.getsockname())
            listener.listen(CALLERS_MOST)
            undo.pop_all()
        self._kept.append(kept)
        self._listeners.append(listener)
        self.addresses.append(kept.getsockname()[:2])
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._on_caller(listener))

    def _on_caller(self, listener: socket.socket) -> None:
        try:
            caller, _ = listener.accept()
        except OSError:  # it has gone
            return
        if len(self._callers) >= CALLERS_MOST:
            caller.close()
            return
        caller.setblocking(False)
        self._callers[caller] = b""
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._on_nonce(caller))

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
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()


def reasons_against(key: bytes, addresses: Sequence[tuple[str, int]], timeout_s: float = TRY_S) -> list[str]:
    """Tries all addresses at a time. For each: "" where the host with this key is found, else why not."""
    callers = [_Caller(key, address) for address in addresses]
    until = time.monotonic() + timeout_s
    with selectors.PollSelector() as selector:
        for caller in callers:
            caller.begin(selector)
        while selector.get_map() and (left_s := until - time.monotonic()) > 0:
            for item, _ in selector.select(left_s):
                item.data()
        for caller in callers:
            if caller.reason is None:
                caller.end(f"no answer within {timeout_s:g} s")
    return [str(caller.reason) for caller in callers]


class _Caller:
    def __init__(self, key: bytes, address: tuple[str, int]) -> None:
        self.reason: str | None = None
        self._nonce = os.urandom(NONCE_NBYTES)
        self._right = mac(key, self._nonce)
        self._address = address
        self._answer = b""
        self._socket: socket.socket | None = None
        self._selector: selectors.BaseSelector | None = None

    def begin(self, selector: selectors.BaseSelector) -> None:
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
        if self._selector is not None and self._socket is not None:
            self._selector.unregister(self._socket)
        if self._socket is not None:
            self._socket.close()

    def _guarded(self, handle: Callable[[socket.socket], None]) -> Callable[[], None]:
        def guarded() -> None:
            assert self._socket is not None
            try:
                handle(self._socket)
            except BlockingIOError:
                return
            except OSError as error:
                self.end(error.strerror or str(error))

        return guarded

    def _on_connected(self, connection: socket.socket) -> None:
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self.end(os.strerror(error))
            return
        connection.send(self._nonce)
        assert self._selector is not None
        self._selector.modify(connection, selectors.EVENT_READ, self._guarded(self._on_answer))

    def _on_answer(self, connection: socket.socket) -> None:
        more = connection.recv(MAC_NBYTES - len(self._answer))
        self._answer += more
        if more and len(self._answer) < MAC_NBYTES:
            return
        self.end("" if hmac.compare_digest(self._answer, self._right) else "another program, or machine, answers")
