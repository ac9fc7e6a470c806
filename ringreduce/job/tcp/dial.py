"""A connection to a host that has several addresses, of which some may lead nowhere (RFC 8305, "Happy Eyeballs")."""

from __future__ import annotations

import builtins
import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

NEXT_S = 0.25
"""How long an address may take before the next one is tried beside it: RFC 8305's value."""


def first_connected(
    found: Sequence[tuple[Any, ...]], timeout_s: float, prepare: Callable[[socket.socket], None]
) -> socket.socket:
    """Tries the addresses in their order, each beside those that have not answered within 0.25 s.

    Args:
        found: of getaddrinfo().
        timeout_s: for all of them together.
        prepare: called with each socket before it is connected.

    Returns:
        The first socket that is connected; it waits without a limit of time.

    Raises:
        OSError: none is connected: the reason of the last one that has failed. The builtin TimeoutError: in time.
    """
    left = list(found)
    error = OSError("no address")
    tried: list[socket.socket] = []
    until_s = time.monotonic() + timeout_s
    next_s = 0.0
    try:
        with selectors.DefaultSelector() as selector:
            while left or selector.get_map():
                now_s = time.monotonic()
                if left and (now_s >= next_s or not selector.get_map()):
                    next_s = now_s + NEXT_S
                    try:
                        tried.append(_begun(left.pop(0), prepare))
                        selector.register(tried[-1], selectors.EVENT_WRITE)
                    except OSError as reason:
                        error = reason
                    continue
                if now_s >= until_s:
                    raise builtins.TimeoutError("timed out")
                for key, _ in selector.select(min(until_s, next_s if left else until_s) - now_s):
                    assert isinstance(key.fileobj, socket.socket)
                    selector.unregister(key.fileobj)
                    code = key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if code == 0:
                        tried.remove(key.fileobj)
                        key.fileobj.setblocking(True)
                        return key.fileobj
                    error = OSError(code, os.strerror(code))
        raise error
    finally:
        for one in tried:
            one.close()


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
