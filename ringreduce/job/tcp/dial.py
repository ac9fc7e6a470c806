"""A connection to a host that has several addresses, of which some may lead nowhere (RFC 8305, "Happy Eyeballs")."""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

NEXT_S = 0.25
"""How long an address may take before the next one is tried beside it: RFC 8305's value."""


def first_connected(
    found: Sequence[tuple[Any, ...]], timeout_s: float, prepare: Callable[[socket.socket], None]
) -> tuple[socket.socket, tuple[Any, ...]]:
    """Tries the addresses in their order, each beside those that have not answered within 0.25 s.

    Args:
        found: of getaddrinfo().
        timeout_s: for all of them together.
        prepare: called with each socket before it is connected.

    Returns:
        The first socket that is connected, which waits without a limit of time; and which of the addresses it is.

    Raises OSError where none is connected: the reason of the one address, or of each. Its errno is that of who has
    refused, if one has, else the last; None where none has answered in time.
    """
    left = list(found)
    failures: list[tuple[str, OSError]] = []
    tried: dict[socket.socket, tuple[Any, ...]] = {}
    until_s = time.monotonic() + timeout_s
    pause_s = min(NEXT_S, timeout_s / (len(left) + 1))
    next_s = 0.0
    try:
        with selectors.PollSelector() as selector:  # which needs no descriptor
            while left or selector.get_map():
                now_s = time.monotonic()
                if left and now_s >= next_s:
                    next_s = now_s + pause_s
                    address = left.pop(0)
                    try:
                        connection = _begun(address, prepare)
                    except OSError as error:
                        failures.append((address[4][0], error))
                        next_s = 0.0
                        continue
                    tried[connection] = address
                    selector.register(connection, selectors.EVENT_WRITE)
                    continue
                if now_s >= until_s:
                    failures += [
                        (tried[_socket(key)][4][0], builtins.TimeoutError("timed out"))
                        for key in selector.get_map().values()
                    ]
                    break
                for key, _ in selector.select(min(until_s, next_s if left else until_s) - now_s):
                    connection = _socket(key)
                    selector.unregister(connection)
                    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    # Where nobody listens yet the kernel may choose the very port that is dialled as this side's own.
                    # It then connects the socket to itself, and the port would be taken for who is to listen there.
                    if code == 0 and connection.getsockname() == connection.getpeername():
                        code = errno.ECONNREFUSED
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        connection.close()  # and with that the port is free for who is to listen there
                    if code == 0:
                        connection.setblocking(True)
                        return connection, tried.pop(connection)
                    failures.append((tried[connection][4][0], OSError(code, os.strerror(code))))
                    next_s = 0.0
        raise _of_all(failures)
    finally:
        failures.clear()  # their tracebacks have this frame: it and its callers' would live until garbage is collected
        for one in tried:
            one.close()


def _socket(key: selectors.SelectorKey) -> socket.socket:
    assert isinstance(key.fileobj, socket.socket)
    return key.fileobj


def _of_all(failures: list[tuple[str, OSError]]) -> OSError:
    if len(failures) < 2:
        return failures[0][1] if failures else OSError("no address")
    numbers = [error.errno for _, error in failures]
    text = "; ".join(f"{ip}: {error}" for ip, error in failures)
    number = errno.ECONNREFUSED if errno.ECONNREFUSED in numbers else numbers[-1]
    return builtins.TimeoutError(text) if number is None else OSError(number, text)


def _begun(address: tuple[Any, ...], prepare: Callable[[socket.socket], None]) -> socket.socket:
    """A socket that is being connected. Raises OSError where that ends at once."""
    family, kind, protocol, _, where = address
    made = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        prepare(made)
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect(where)
        return made
    except BaseException:
        made.close()
        raise
