"""What ended a rank, in its own words: the launcher's side. The rank's is ringreduce/job/failure/uncaught.py."""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket

from ringreduce.job.failure.uncaught import OF_ANOTHER_RANK, REPORT_NBYTES, report_address

REPEATED = tuple(f"ringreduce.errors.{name}:" for name in OF_ANOTHER_RANK)
"""How an exception begins that repeats what another rank died of."""

READ_AT_ONCE = 1024  # any user of this host may send to this address: the other events have their turn


class Causes:
    """The exceptions that ended ranks."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        """By rank, in the order in which they came."""

    def first(self) -> tuple[int, str] | None:
        """The rank and the exception that came first, not counting those that repeat what another rank died of.

        A rank that calls shutdown() in a `finally` tells the other ranks before it reports. They may report first.
        None: there are no others, or none at all.
        """
        return next((entry for entry in self.texts.items() if not entry[1].startswith(REPEATED)), None)


class Reports:
    """Takes reports of uncaught exceptions from ranks on this host, at an address that only they can speak to.

    Args:
        rendezvous: the job's RINGREDUCE_RENDEZVOUS, whose secret each report has to show.
        causes: where they go.
        selector: calls read() when one has come.
    """

    def __init__(self, rendezvous: str, causes: Causes, selector: selectors.BaseSelector) -> None:
        self._causes = causes
        job, _, secret = rendezvous.rpartition(":")
        self._secret = secret.encode()
        self._selector = selector
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(report_address(job))
        selector.register(self._socket, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Takes what has come; anything that is not from a rank is dropped."""
        for _ in range(READ_AT_ONCE):
            try:
                report = self._socket.recv(REPORT_NBYTES)
            except BlockingIOError:
                return
            secret, _, words = report.partition(b"\n")
            if not hmac.compare_digest(secret, self._secret):  # any user of this host may send to this address
                continue
            with contextlib.suppress(ValueError):
                rank, cause = _parsed(words)
                self._causes.texts.setdefault(rank, cause)

    def close(self) -> None:
        """Stops listening. Idempotent."""
        if self._socket.fileno() >= 0:
            self._selector.unregister(self._socket)
            self._socket.close()


def _parsed(words: bytes) -> tuple[int, str]:
    match json.loads(words):
        case [int() as rank, str() as cause]:
            return rank, "".join(letter if letter.isprintable() else " " for letter in cause)
    raise ValueError("not a report")
