"""The server of `ringreduce top --web` beside other users of the host, who may connect and have no secret."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from deadlines import HANG_S, SOON_S

from ringreduce.watch import web
from ringreduce.watch.web import MOST_CONNECTIONS, Recent

SECRET = "secret"


@contextmanager
def server(monkeypatch: pytest.MonkeyPatch, head_s: float) -> Iterator[int]:
    """Its port; head_s: the time that a request may take to come."""
    monkeypatch.setattr(web._Handler, "timeout", head_s)
    with web._Server(0, SECRET, Recent()) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield running.server_port
        finally:
            running.shutdown()
            thread.join()


def connected(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=SOON_S)


def status(connection: http.client.HTTPConnection, path: str = f"/{SECRET}/figures") -> int:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def stranger(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=SOON_S)
    made.sendall(b"G")
    return made


def test_strangers_do_not_lock_the_owner_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They connect before each of the owner's requests, and never end one of theirs."""
    with server(monkeypatch, HANG_S) as port, ExitStack() as opened, closing(connected(port)) as page:
        strangers = []
        for _ in range(3):
            strangers += [opened.enter_context(stranger(port)) for _ in range(MOST_CONNECTIONS)]
            for one in strangers:
                with suppress(OSError):  # it was closed for the sake of another
                    one.sendall(b"E")
            with closing(connected(port)) as new:
                assert status(new) == 200
            assert status(page) == 200
            assert page.sock is not None, "the connection that has shown the secret stays"


def test_of_those_with_the_secret_the_newest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(monkeypatch, HANG_S) as port, ExitStack() as opened:
        pages = [opened.enter_context(closing(connected(port))) for _ in range(MOST_CONNECTIONS)]
        assert [status(page) for page in pages] == [200] * MOST_CONNECTIONS
        with closing(connected(port)) as new, pytest.raises((http.client.HTTPException, OSError)):
            status(new)
        assert [status(page) for page in pages] == [200] * MOST_CONNECTIONS


@pytest.mark.parametrize("is_second", [False, True])
def test_a_request_has_one_deadline_however_slowly_it_comes(monkeypatch: pytest.MonkeyPatch, is_second: bool) -> None:
    """Each byte comes long before the deadline of the next one; also behind a request that was answered."""
    with server(monkeypatch, 2.0) as port, closing(connected(port)) as connection:
        connection.connect()
        if is_second:
            assert status(connection) == 200
        slow = connection.sock
        slow.settimeout(0.02)
        for _ in range(int(SOON_S / 0.02)):
            try:
                slow.sendall(b"G")
                if slow.recv(1) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("the connection is open still")
