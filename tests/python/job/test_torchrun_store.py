"""What ranks that torchrun has started again do with what its store still holds of those before them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S
from ports import free_port
from tcp_jobs import secret_file
from together import together

from ringreduce.errors import InvalidArgumentError, TimeoutError
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.places import TcpWanted
from ringreduce.job.store_rendezvous import join_with_store
from ringreduce.job.tcp import rendezvous
from ringreduce.job.tcp.job import meet_told
from ringreduce.job.tcp.rendezvous import Met
from ringreduce.job.tcp.torchrun_store import ToldByStore

distributed = pytest.importorskip("torch.distributed")
KEY = "ringreduce/rank 0/0"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> object:
    """torchrun's."""
    kept = distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=HANG_S))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(kept.port))
    return kept


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where a program listens that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def port_of_a_stranger() -> Iterator[int]:
    """Where a program listens that answers everybody with bytes of its own."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail.example.com ready" * 20)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)


def meet(rank: int, told: ToldByStore, folder: Path) -> Met:
    place = Placement(rank, 2, 0, 1, rank, 2, "torchrun", "")
    wanted = TcpWanted("", str(folder / "secret"), "tcp", None, None)
    with contextlib.closing(told):
        return meet_told(place, wanted, 0, told.deadline, "127.0.0.1", told.tell)


@pytest.mark.parametrize(
    "what", ["nobody listens", "a stranger listens", "somebody listens and says nothing", "an error"]
)
def test_what_an_earlier_rank_0_has_told_is_not_believed(
    store: object,
    silent_port: int,
    port_of_a_stranger: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    secret_file(tmp_path)
    ports = {"nobody listens": free_port(), "a stranger listens": port_of_a_stranger}
    address = f"127.0.0.1:{ports.get(what, silent_port)}"
    earlier = {"error": "no port was free", "kind": "MismatchError"} if what == "an error" else {"address": address}
    store.set(KEY, json.dumps({"secret": None, **earlier}))  # type: ignore[attr-defined]
    has_read, check = threading.Event(), ToldByStore._check

    def checked(self: ToldByStore) -> None:
        has_read.set()
        check(self)

    monkeypatch.setattr(ToldByStore, "_check", checked)
    monkeypatch.setattr(rendezvous, "STALE_S", HANG_S)
    monkeypatch.setattr("ringreduce.job.tcp.job.STALE_S", HANG_S)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(meet, 1, ToldByStore(0, "rank 1", HANG_S), tmp_path)
        assert has_read.wait(HANG_S)
        mine = meet(0, ToldByStore(0, "rank 0", HANG_S), tmp_path)
        theirs = other.result(HANG_S)
    assert (mine.addresses, mine.key) == (theirs.addresses, theirs.key)
    mine.listener.close()
    theirs.listener.close()


def test_an_error_of_this_rank_0_is_told(store: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment, in which nothing else is told."""
    secret_file(tmp_path)
    monkeypatch.setattr("ringreduce.job.tcp.job.STALE_S", 0.2)
    text = json.dumps({"error": "no address of this host", "kind": "InvalidArgumentError"})
    store.set(KEY, text)  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match="told by rank 0: no address of this host"):
        meet(1, ToldByStore(0, "rank 1", HANG_S), tmp_path)


def test_what_rank_0_has_told_is_forgotten_once_all_have_met(store: object) -> None:
    with contextlib.closing(ToldByStore(0, "rank 0", HANG_S)) as told:
        told.tell("here")
        assert store.check([KEY])  # type: ignore[attr-defined]
        told.forget()
    assert not store.check([KEY])  # type: ignore[attr-defined]


KEEPS = """
import sys
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


class Keeper:
    """A process that keeps a store, as torchrun's agent does."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self._process = process

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def joined(self) -> Any:
        return distributed.TCPStore("127.0.0.1", self.port, None, False, timedelta(seconds=HANG_S))


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    words = [sys.executable, "-c", KEEPS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            kept = Keeper(process)
            monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
            monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
            monkeypatch.setenv("MASTER_PORT", str(kept.port))
            yield kept
        finally:
            process.kill()
            # Their calls return now. A thread that leaves torch's code while its interpreter ends would abort that.
            for thread in threading.enumerate():
                if thread.name == "ringreduce store":
                    thread.join(HANG_S)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_store_that_is_stopped(keeper: Keeper, is_known: bool) -> None:
    """A rank waits for rank 0's text no longer than for the other ranks."""
    told = ToldByStore(0, "rank 1", 1.0)
    if is_known:
        (error,) = together(lambda: told.tell(None))
        assert "rank 0 has not written" in str(error)
        told.deadline = Deadline(1.0)
    keeper.stop()
    (error,) = together(lambda: told.tell(None))
    assert isinstance(error, TimeoutError), error
    assert f"torchrun's store at 127.0.0.1:{keeper.port} does not answer within 1 s: is its agent stopped" in str(error)
    told.close()


def test_a_store_that_is_stopped_once_it_has_been_read(keeper: Keeper) -> None:
    """Who has read rank 0's text does not need it any more."""
    keeper.joined().set(KEY, "here")
    told = ToldByStore(0, "rank 1", HANG_S)
    assert told.tell(None) == "here"
    told.deadline.check()
    keeper.stop()

    def checks() -> None:
        for _ in range(3):
            told.deadline.check()
        told.forget()
        told.close()

    assert together(checks) == [None]


def test_a_groups_store_that_is_stopped(keeper: Keeper) -> None:
    """With and without a look at the members of the default group; rank 0, and another rank."""
    from ringreduce.torch.distributed.membership import TorchStore

    stores = [TorchStore(distributed.PrefixStore("group", keeper.joined())) for _ in range(3)]
    keeper.stop()
    checks = (None, lambda: None, lambda: None)
    for error in together(
        *(
            partial(join_with_store, store, rank, 2, 1.0, lambda: -1, group="all", check=check)
            for store, rank, check in zip(stores, (0, 0, 1), checks, strict=True)
        )
    ):
        assert isinstance(error, TimeoutError), error
        assert f"the group's store at 127.0.0.1:{keeper.port} does not answer within 1 s" in str(error)
    assert together(*(store.forget for store in stores), *(store.close for store in stores)) == [None] * 6
