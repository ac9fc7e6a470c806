"""What ended a rank, in its own words: the launcher's side. The rank's is ringreduce/job/uncaught.py."""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket

from ringreduce.job.uncaught import REPORT_NBYTES, report_address

REPEATED = ("ringreduce.errors.PeerLostError:", "ringreduce.errors.ShutdownError:")
"""How an exception begins that says that another rank has gone: died, failed, or called shutdown()."""


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
        job, _, self._secret = rendezvous.rpartition(":")
        self._selector = selector
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(report_address(job))
        selector.register(self._socket, selectors.EVENT_READ, self.read)

    def read(self) -> None:
        """Takes what has come; anything that is not from a rank is dropped."""
        while True:
            try:
                report = self._socket.recv(REPORT_NBYTES)
            except BlockingIOError:
                return
            with contextlib.suppress(ValueError):
                rank, cause = self._parsed(report)
                self._causes.texts.setdefault(rank, cause)

    def _parsed(self, report: bytes) -> tuple[int, str]:
        match json.loads(report):
            case [str() as secret, int() as rank, str() as cause] if hmac.compare_digest(secret, self._secret):
                return rank, "".join(letter if letter.isprintable() else " " for letter in cause)
        raise ValueError("not a report of this job")

    def close(self) -> None:
        """Stops listening. Idempotent."""
        if self._socket.fileno() >= 0:
            self._selector.unregister(self._socket)
            self._socket.close()
