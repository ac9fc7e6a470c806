"""`ringreduce top --web`: one page with a chart, for browsers on this host and for this user.

The server listens on the loopback interface alone. Every other user of the host can connect there, so the page's
address has a secret part. A page of a foreign name that leads to 127.0.0.1 (DNS rebinding) is refused by its Host
header.
"""

from __future__ import annotations

import io
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from ringreduce.errors import InvalidArgumentError
from ringreduce.watch.board import Board
from ringreduce.watch.figures import JobFigures

LOOPBACK = "127.0.0.1"
HISTORY_S = 120.0
"""A page that is opened later gets what was seen in this time before."""
POINT_S = 0.5
"""A chart has a point so often, not each time that somebody looks."""
MOST_LINES = 32
MOST_CONNECTIONS = 16
"""At once. A browser takes one or two."""
END_S = 5.0
"""So long a new connection waits for the end of the one that is closed for it: for one turn of a thread."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Recent:
    """The last figures of the jobs, and the lines of the charts. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: deque[dict[str, Any]] = deque()
        self._now: list[JobFigures] = []
        self._unreadable: list[str] = []

    def add(self, jobs: Sequence[JobFigures], unreadable: Sequence[str]) -> None:
        """Takes what was seen now."""
        at_s = time.monotonic()
        with self._lock:
            if not self._points or at_s - self._points[-1]["at_s"] >= POINT_S:
                self._points.append({"at_s": at_s, "jobs": {str(job.pid): _point(job) for job in jobs}})
            while self._points and self._points[0]["at_s"] < at_s - HISTORY_S:
                self._points.popleft()
            self._now = list(jobs)
            self._unreadable = list(unreadable)

    def since(self, at_s: float) -> dict[str, Any]:
        """As the page gets it: {"jobs": as --once --json prints them, "unreadable": [...], "points": [...]}.

        points: of the charts, later than at_s (of time.monotonic()), oldest first: {"at_s": ..., "jobs": {PID:
        {"ranks": [0, 1, ...], "waited_share": [0.1, null, ...], ...}}}.
        """
        with self._lock:
            points = [point for point in self._points if point["at_s"] > at_s]
            jobs, unreadable = self._now, self._unreadable
        return {"jobs": [job.as_json() for job in jobs], "unreadable": unreadable, "points": points}


def _point(job: JobFigures) -> dict[str, list[float | None]]:
    """Of each rank, by position; of many ranks those that others waited for the longest."""
    ranks = sorted(job.ranks, key=lambda rank: -(rank.late_share or 0.0))[:MOST_LINES]
    point: dict[str, list[float | None]] = {"ranks": [rank.rank for rank in ranks]}
    for name in ("waited_share", "late_share", "cpu_share", "bus_bytes_per_s", "operations_per_s"):
        values = (getattr(rank, name) for rank in ranks)
        point[name] = [None if value is None else float(f"{value:.4g}") for value in values]
    return point


def serve(board: Board, port: int, interval_s: float) -> int:
    """Looks at the jobs, and serves the page, until the process is interrupted. Prints the page's address.

    port: 0 for any that is free. Raises InvalidArgumentError where nothing can listen there.
    """
    recent = Recent()
    secret = secrets.token_urlsafe(16)
    try:
        server = _Server(port, secret, recent)
    except OSError as error:
        raise InvalidArgumentError(f"--web: cannot listen on {LOOPBACK}:{port}: {error.strerror}") from error
    recent.add(board.look(), board.unreadable)  # before anybody knows whom to ask
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="web", daemon=True)
        thread.start()
        print(f"http://{LOOPBACK}:{server.server_port}/{secret}/", flush=True)
        try:
            while True:
                time.sleep(interval_s)
                recent.add(board.look(), board.unreadable)
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser keeps its connection open

    def __init__(self, port: int, secret: str, recent: Recent) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.secret = secret
        self.recent = recent
        self.page = Path(__file__).with_name("page.html").read_bytes()
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # open, and have not shown the secret; the oldest first

    def process_request(self, request: Any, client_address: Any) -> None:
        """Makes room for a connection too many: every user of the host can open some, and must not keep the owner out.

        The oldest that has not shown the secret makes room. Where all have shown it, the new one is refused.
        """
        is_free = self._free.acquire(blocking=False)
        if is_free or (self._ends_a_stranger() and self._free.acquire(timeout=END_S)):
            with self._lock:
                self._strangers[request] = None
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def _ends_a_stranger(self) -> bool:
        with self._lock:  # its thread closes it under this lock
            oldest = next(iter(self._strangers), None)
            if oldest is None:
                return False
            del self._strangers[oldest]
            with suppress(OSError):  # the other end has closed it
                oldest.shutdown(socket.SHUT_RDWR)
            return True

    def has_shown_the_secret(self, request: socket.socket) -> None:
        """From here on no other connection takes its room."""
        with self._lock:
            self._strangers.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers on one connection until that ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        with self._lock:
            self._strangers.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a client that goes away, or sends what is no request."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[float] = 5  # seconds; a connection ends on which no whole request has come in this time

    def setup(self) -> None:
        """Reads by way of _Head."""
        super().setup()
        self._head = _Head(self.connection)
        self.rfile = io.BufferedReader(self._head)

    def handle_one_request(self) -> None:
        """Waits for a request, and answers it."""
        self._head.deadline_s = time.monotonic() + self.timeout
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answers: the page at /SECRET/, the figures at /SECRET/figures?since=SECONDS."""
        path, _, query = self.path.partition("?")
        if not self._is_asked_here():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"ask by 127.0.0.1 or localhost\n")
        elif secrets.compare_digest(path.encode(), f"/{self.server.secret}/".encode()):
            self.server.has_shown_the_secret(self.connection)
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        elif secrets.compare_digest(path.encode(), f"/{self.server.secret}/figures".encode()):
            self.server.has_shown_the_secret(self.connection)
            figures = self.server.recent.since(_since(query))
            self._answer(HTTPStatus.OK, "application/json", json.dumps(figures).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"the address is printed by ringreduce top --web\n")

    def _is_asked_here(self) -> bool:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        return host in (LOOPBACK, "localhost")  # whatever the port: it may be another one at this end of a tunnel

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal shows the page's address."""


class _Head(io.RawIOBase):
    """What comes on a socket, until a deadline: a socket's own time-out begins anew with each byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.deadline_s = 0.0

    def readable(self) -> bool:
        """See io."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See io. Raises TimeoutError past the deadline."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request has not come in time")
        former_s = self._connection.gettimeout()
        self._connection.settimeout(left_s)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(former_s)  # that of answers


def _since(query: str) -> float:
    name, _, value = query.partition("=")
    try:
        return float(value) if name == "since" else 0.0
    except ValueError:
        return 0.0
