"""The meeting over a key-value store, of ranks as threads: on one host, over TCP, and what is said on every rank."""

from __future__ import annotations

import builtins
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S
from tcp_jobs import secret_file
from together import together

from ringreduce import _core
from ringreduce.errors import InvalidArgumentError, MismatchError, TimeoutError, UnavailableError
from ringreduce.job import rendezvous, store_rendezvous
from ringreduce.job.store_rendezvous import STORE_KEY, join_with_store

SOON_S = 0.5


class DictStore:
    """A store for threads, in which a test may change what is written."""

    def __init__(self, change: Callable[[str, bytes], bytes] = lambda key, value: value) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.change = change

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = self.change(key, value)
            self.changed.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout_s):
                raise builtins.TimeoutError(key)
            return self.values[key]

    def has(self, key: str) -> bool:
        with self.changed:
            return key in self.values

    def silent(self) -> str:
        return ""


def is_of(key: str, part: str) -> bool:
    """Whether a key is of rank 1's record, rank 0's answer and so on, in whichever meeting."""
    return key.startswith(STORE_KEY) and key.endswith("/" + part)


def answering(answer: dict[str, Any]) -> Callable[[str, bytes], bytes]:
    """Has rank 0 answer something else to the same records."""

    def change(key: str, value: bytes) -> bytes:
        return json.dumps({"to": json.loads(value)["to"], **answer}).encode() if is_of(key, "answer") else value

    return change


def over(
    store: DictStore, rank: int, size: int, timeout_s: float = HANG_S, group: str = "all"
) -> tuple[int, list[int] | None, bool]:
    """What one rank gets: the inode of its host's memory, the hosts, and whether there is a network."""

    def segment() -> int:
        return _core.memfd("test segment", _core.control_nbytes(size))

    joined = join_with_store(store, rank, size, timeout_s, segment, group=group)
    got = os.fstat(joined.memory.fd).st_ino, joined.hosts, joined.tcp is not None
    joined.close()
    return got


def all_over(store: DictStore, size: int, timeout_s: float = HANG_S) -> list[Any]:
    return together(*(lambda rank=rank: over(store, rank, size, timeout_s) for rank in range(size)))  # type: ignore[misc]


@pytest.fixture(name="tcp")
def each_rank_a_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", "tcp")
    monkeypatch.setenv("RINGREDUCE_SECRET_FILE", str(secret_file(tmp_path)))
    return monkeypatch


@pytest.mark.parametrize("timeout_s", [HANG_S, 30 * 86400.0])  # poll() counts to 24 days
@pytest.mark.parametrize("size", [1, 2, 5])
def test_ranks_of_one_host_meet(size: int, timeout_s: float) -> None:
    answers = all_over(DictStore(), size, timeout_s)
    assert [answer[1:] for answer in answers] == [(None, False)] * size, answers
    assert len({inode for inode, *_ in answers}) == 1


@pytest.mark.usefixtures("tcp")
@pytest.mark.parametrize("size", [2, 5])
def test_ranks_meet_over_tcp(size: int) -> None:
    before = os.listdir("/proc/self/fd")
    answers = all_over(DictStore(), size)
    assert [answer[1:] for answer in answers] == [(list(range(size)), True)] * size, answers
    assert len({inode for inode, *_ in answers}) == size
    assert os.listdir("/proc/self/fd") == before


def test_one_rank_needs_no_network(tcp: pytest.MonkeyPatch) -> None:
    tcp.delenv("RINGREDUCE_SECRET_FILE")
    assert over(DictStore(), 0, 1)[1:] == (None, False)


def test_a_missing_rank_is_named_on_all() -> None:
    store = DictStore()
    for error in together(lambda: over(store, 0, 3, SOON_S), lambda: over(store, 1, 3)):
        assert isinstance(error, TimeoutError)
        assert "rank 2 did not come" in str(error)


def test_a_rank_that_runs_out_of_time_before_rank_0_does_not_miss_that_one() -> None:
    """Rank 0 has named the meeting, and waits for others yet."""
    store = DictStore()
    store.set(STORE_KEY, b"meeting")
    with pytest.raises(
        TimeoutError, match=r"rank 1/3: rank 0 has come .* not answered within 0\.1 s: other ranks have"
    ):
        over(store, 1, 3, 0.1)


@pytest.mark.parametrize(
    ("environ", "kind", "words"),
    [
        ({}, UnavailableError, "needs the job's secret: set RINGREDUCE_SECRET_FILE"),
        ({"RINGREDUCE_SECRET_FILE": "/nowhere"}, InvalidArgumentError, "secret file cannot be read"),
        ({"RINGREDUCE_TRANSPORT": "shm"}, UnavailableError, "RINGREDUCE_TRANSPORT=shm: hosts of such a group"),
        ({"RINGREDUCE_TRANSPORT": "mpi"}, UnavailableError, "RINGREDUCE_TRANSPORT=mpi: hosts of such a group"),
    ],
)
def test_several_hosts_that_cannot_be_connected(
    environ: dict[str, str], kind: type, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 is elsewhere; every rank is told what is missing, on which rank, and who is where."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def elsewhere(key: str, value: bytes) -> bytes:
        return value.replace(rendezvous.host_identity(), b"elsewhere") if is_of(key, "1") else value

    here = os.uname().nodename[:64]
    for error in all_over(DictStore(elsewhere), 3):
        assert isinstance(error, kind), error
        assert f"on several hosts (rank 0 on {here}, rank 1 on {here}, rank 2 on {here}). Rank 0: " in str(error)
        assert words in str(error)


def changed(**fields: str) -> Callable[[str, bytes], bytes]:
    """Rank 1's record with other values."""
    return lambda key, value: json.dumps(json.loads(value) | fields).encode() if is_of(key, "1") else value


@pytest.mark.usefixtures("tcp")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(transport="auto"), "RINGREDUCE_TRANSPORT is tcp on this rank, and auto on rank 1"),
        (
            changed(proof="00" * 32),
            "rank 1, on .*, has another secret than this rank: RINGREDUCE_SECRET_FILE has to be",
        ),
        (changed(nonce="00" * 32), "rank 1, on .*, has another secret than this rank"),
        (lambda key, value: value.replace(b'"problem"', b'"trouble"'), "rank 1 has written .* not this version"),
        (lambda key, value: b"\xff" if is_of(key, "1") else value, "rank 1 has written .* not this version"),
        (lambda key, value: b"[1]" if is_of(key, "1") else value, "rank 1 has written .* not this version"),
    ],
    ids=["transport", "secret", "replayed", "fields", "bytes", "list"],
)
def test_ranks_that_disagree_are_told(change: Callable[[str, bytes], bytes], words: str) -> None:
    for error in all_over(DictStore(change), 3):
        with pytest.raises(MismatchError, match=words):
            raise error


@pytest.mark.parametrize(
    "answer",
    [
        *(b"\xff", b"[]", b"{}", b'{"to": 5}', b"[" * 100_000),
        *({"address": "xy", "secret": ""}, {"address": 5}, {}, {"tag": 5}, {"tag": "00"}, {"tag": "\ud800" * 32}),
    ],
)
def test_an_answer_that_cannot_be_read(answer: Any) -> None:
    unread = lambda key, value: answer if is_of(key, "answer") else value  # noqa: E731
    store = DictStore(unread if isinstance(answer, bytes) else answering(answer))
    errors = together(lambda: over(store, 0, 2, SOON_S), lambda: over(store, 1, 2))
    assert isinstance(errors[0], TimeoutError), errors
    assert isinstance(errors[1], MismatchError), errors
    assert "what rank 0 has written into the store is not this version" in str(errors[1])


@pytest.mark.usefixtures("tcp")
def test_who_writes_into_the_store_does_not_join() -> None:
    """It sends rank 1 to an address of its own, where nobody knows the secret; and it cannot have it take another."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def astray(key: str, value: bytes) -> bytes:
            address = f"127.0.0.1:{stranger.getsockname()[1]}"
            return json.dumps({"address": address, "secret": "00" * 32}).encode() if is_of(key, "listens") else value

        store = DictStore(astray)
        errors = together(lambda: over(store, 0, 2, SOON_S), lambda: over(store, 1, 2))
        assert isinstance(errors[0], TimeoutError)
        assert "rank 1 did not come" in str(errors[0])
        assert isinstance(errors[1], MismatchError)
        assert "this rank has a RINGREDUCE_SECRET_FILE and rank 0 has none" in str(errors[1])


@pytest.mark.usefixtures("tcp")
def test_another_groups_tag_is_another_secret() -> None:
    store = DictStore(answering({"tag": "0" * 32}))
    errors = together(lambda: over(store, 0, 2, SOON_S), lambda: over(store, 1, 2))
    assert isinstance(errors[0], TimeoutError)
    assert isinstance(errors[1], MismatchError)
    assert "does not know this job's secret" in str(errors[1])


def test_rank_0_that_cannot_listen_tells_all(tcp: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tcp.setenv("RINGREDUCE_PORTS", f"{port}-{port}")
        for error in all_over(DictStore(), 3):
            assert isinstance(error, UnavailableError)
            assert "RINGREDUCE_PORTS: all 1 ports are taken at 127.0.0.1" in str(error)


def test_a_rank_that_cannot_listen_tells_all(tcp: pytest.MonkeyPatch) -> None:
    """Rank 0 has a port for the meeting and one for itself; nobody else has one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    tcp.setenv("RINGREDUCE_PORTS", f"{port}-{port + 1}")
    for error in all_over(DictStore(), 2):
        assert isinstance(error, UnavailableError), error
        assert "RINGREDUCE_PORTS: all 2 ports are taken at 127.0.0.1" in str(error)


def test_a_transport_that_is_none_is_told_to_a_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", "carrier-pigeon")
    with pytest.raises(InvalidArgumentError, match="RINGREDUCE_TRANSPORT=carrier-pigeon"):
        over(DictStore(), 0, 1)


def test_a_transport_that_is_none_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_TRANSPORT", "pigeon")
    for error in all_over(DictStore(), 3):
        assert isinstance(error, InvalidArgumentError), error
        assert "RINGREDUCE_TRANSPORT=pigeon: expected one of" in str(error)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_two_groups_do_not_meet_whatever_is_in_their_stores(transport: str, tcp: pytest.MonkeyPatch) -> None:
    """Somebody copies what the ranks of one group write into the store of the other: rank 1 of the second would be
    rank 1 of the first."""
    tcp.setenv("RINGREDUCE_TRANSPORT", transport)
    shared = DictStore()
    first, second = together(
        lambda: over(shared, 0, 2, 2 * SOON_S, "first [0, 1]"), lambda: over(shared, 1, 2, 2 * SOON_S, "second [2, 3]")
    )
    assert isinstance(first, TimeoutError), first
    assert isinstance(second, MismatchError), second
    assert "does not know this job's secret" in str(second)


def test_the_secret_is_not_in_the_store(tcp: pytest.MonkeyPatch) -> None:
    told: list[bytes] = []

    def keep(_: str, value: bytes) -> bytes:
        told.append(value)
        return value

    tcp.delenv("RINGREDUCE_SECRET_FILE")
    tcp.setattr(store_rendezvous, "_remembered", b"s" * 32)
    all_over(DictStore(keep), 2)
    assert len(told) == 4
    assert not any(b"s" * 8 in value or (b"s" * 32).hex().encode() in value for value in told)


class CountingStore(DictStore):
    """Tells a test when somebody has read a rank 0's answer."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()

    def get(self, key: str, timeout_s: float) -> bytes:
        value = super().get(key, timeout_s)
        if is_of(key, "answer"):
            self.read.set()
        return value


@pytest.mark.parametrize("transport", ["auto", "tcp"])
@pytest.mark.parametrize("was_error", [False, True])
def test_ranks_before_these_have_left_their_keys(transport: str, was_error: bool, tcp: pytest.MonkeyPatch) -> None:
    """As ranks that were killed do, before torchrun starts others. Rank 1 comes first, and reads the old keys."""
    tcp.setattr(store_rendezvous, "STALE_S", HANG_S)
    store = CountingStore()
    tcp.setenv("RINGREDUCE_TRANSPORT", "pigeon" if was_error else transport)
    assert all(isinstance(one, InvalidArgumentError) == was_error for one in all_over(store, 2))
    tcp.setenv("RINGREDUCE_TRANSPORT", transport)
    store.read.clear()

    def later() -> Any:
        assert store.read.wait(HANG_S)
        return over(store, 0, 2)

    first, second = together(later, lambda: over(store, 1, 2))
    assert first[1:] == second[1:], (first, second)
    assert (first[0] == second[0]) == (transport == "auto")


def test_an_error_before_the_record_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 gives up on rank 1; rank 2 comes after that."""
    monkeypatch.setattr(store_rendezvous, "STALE_S", 0.1)
    store = DictStore()
    assert isinstance(*together(lambda: over(store, 0, 3, 0.1)), TimeoutError)
    (error,) = together(lambda: over(store, 2, 3))
    assert isinstance(error, TimeoutError)
    assert "rank 1 did not come" in str(error)
