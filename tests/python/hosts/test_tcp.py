"""Ranks that are connected by TCP: on one machine, each a host of its own, and on the lab's hosts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from deadlines import HANG_S, SOON_S
from ports import free_port, listening_ports
from ranks import Ranks, clean_environment, receive_from_test, run_ranks, send_to_test, start_ranks
from tcp_jobs import first_lines, secret_file, tcp_environment, train_job

import ringreduce
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.deadline import Deadline
from ringreduce.job.environment import Placement
from ringreduce.job.places import TcpWanted
from ringreduce.job.tcp.job import host_and_port, source
from ringreduce.job.tcp.rendezvous import TcpMeeting, meet, parse_address, read_secret
from ringreduce.lab.lab import Lab
from ringreduce.lab.ranks import pid_of
from ringreduce.lab.requirements import missing

needs_lab = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(name="tcp")
def tcp_on_one_machine(tmp_path: Path) -> dict[str, str]:
    """The variables of a job whose ranks are each a host of their own."""
    return tcp_environment(tmp_path)


# --- one machine ------------------------------------------------------------------------------------------------------


def all_collectives() -> dict[str, int]:
    with ringreduce.init() as world:
        for count in (0, 1, 3, 5000, 1 << 18):
            x = (np.arange(count) % 97 + world.rank).astype(np.float32)
            wanted = ((np.arange(count) % 97) * world.size + sum(range(world.size))).astype(np.float32)
            for name in (None, f"sum {count}"):
                assert (ringreduce.allreduce(x, op=ringreduce.Sum, name=name) == wanted).all()
        rows = ringreduce.allgather(np.full((world.rank + 1, 2), world.rank))
        assert rows[:, 0].tolist() == [rank for rank in range(world.size) for _ in range(rank + 1)]
        assert (ringreduce.broadcast(np.full(9, world.rank), root_rank=1) == 1).all()
        received = ringreduce.alltoall(np.arange(world.size) * 100 + world.rank)
        received = received[0] if isinstance(received, tuple) else received
        assert received.tolist() == [world.rank * 100 + rank for rank in range(world.size)]
        odd = ringreduce.add_process_set(range(1, world.size))
        if world.rank > 0:
            total = ringreduce.allreduce(np.ones(1000), op=ringreduce.Sum, process_set=odd)
            assert (total == world.size - 1).all()
        if world.rank == 0:
            ringreduce.send(np.arange(70_000), 1)
        elif world.rank == 1:
            got = np.zeros(70_000, np.int64)
            ringreduce.recv(got, 0)
            assert (got == np.arange(70_000)).all()
        ringreduce.join()
        return ringreduce.stats()


@pytest.mark.parametrize("size", [2, 3, 5])
def test_collectives_of_ranks_that_are_hosts_of_their_own(size: int, tcp: dict[str, str]) -> None:
    assert all(stats["bytes_on_wire"] > 1 << 20 for stats in run_ranks(all_collectives, size, env=tcp))


def twice() -> list[float]:
    sums = []
    for number in (1, 2):
        with ringreduce.init():
            sums.append(float(ringreduce.allreduce(np.full(1, number), op=ringreduce.Sum)[0]))
    return sums


def test_shutdown_and_init_again_at_the_same_address(tcp: dict[str, str]) -> None:
    assert run_ranks(twice, 3, env=tcp) == [[3.0, 6.0]] * 3


def test_ranks_of_one_host_need_no_network_although_they_meet_over_tcp(tcp: dict[str, str]) -> None:
    everyone = run_ranks(all_collectives, 2, env=tcp | {"RINGREDUCE_TRANSPORT": "auto"})
    assert [stats["bytes_on_wire"] for stats in everyone] == [0, 0]


def dies(victim: int) -> str:
    ringreduce.init()
    ringreduce.allreduce(np.ones(4))
    send_to_test("ready")
    receive_from_test()
    with pytest.raises(ringreduce.PeerLostError, match=f"lost rank {victim}"):
        go_on()
    return "lost"


def go_on() -> None:
    for _ in range(10_000_000):
        ringreduce.allreduce(np.ones(100_000))


def wait_for_all(job: Ranks, size: int) -> None:
    for rank in range(size):
        assert job.receive(rank) == "ready"


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_lost_on_all_others(victim: int, tcp: dict[str, str]) -> None:
    with start_ranks(dies, 3, args=(victim,), env=tcp) as job:
        wait_for_all(job, 3)
        job.kill(victim)
        for rank in {0, 1, 2} - {victim}:
            job.send(rank, "go")
        outcomes = job.wait(HANG_S)
    assert [outcome.value for outcome in outcomes if outcome.rank != victim] == ["lost"] * 2, outcomes


def leaves_early() -> str:
    """The leader of one host has left; the others go on with what does not need it, and are told so when they do."""
    ringreduce.init()
    ringreduce.barrier()
    if ringreduce.rank() == 0:
        ringreduce.shutdown()
        return "left"
    end_s = time.monotonic() + 4  # longer than a connection's end is taken for something else
    message = np.zeros(1000, np.int64)
    while message[0] == 0:
        if ringreduce.rank() == 1:
            message[:] = time.monotonic() > end_s
            ringreduce.send(message, 2)
        else:
            ringreduce.recv(message, 1)
    try:
        ringreduce.allreduce(np.ones(10))
    except ringreduce.Error as error:
        return type(error).__name__
    return "none"


def test_ranks_go_on_without_one_that_has_left(tcp: dict[str, str]) -> None:
    seen = run_ranks(leaves_early, 3, env=tcp)
    assert seen == ["left", "ShutdownError", "ShutdownError"]


def stopped() -> float:
    with ringreduce.init() as world:
        ringreduce.allreduce(np.ones(4))
        send_to_test(str(os.getpid()))
        if world.rank == 0:
            receive_from_test()
        return float(ringreduce.allreduce(np.ones(200_000), op=ringreduce.Sum)[0])


@pytest.mark.parametrize(("victim", "stopped_s"), [(0, 6), (1, 6), pytest.param(0, 60, marks=pytest.mark.long)])
def test_a_stopped_rank_is_not_lost_but_named(victim: int, stopped_s: int, tcp: dict[str, str]) -> None:
    with start_ranks(stopped, 3, env=tcp) as job:
        pids = [int(job.receive(rank)) for rank in range(3)]
        os.kill(pids[victim], signal.SIGSTOP)
        time.sleep(stopped_s)  # longer than a host may show no sign of life
        os.kill(pids[victim], signal.SIGCONT)
        time.sleep(1)  # four times the pause between two signs: that it is back is seen before the job ends
        job.send(0, "go")
        outcomes = job.wait(HANG_S)
    assert [outcome.value for outcome in outcomes] == [3.0] * 3, outcomes
    lines = [line for outcome in outcomes for line in outcome.output.splitlines() if "sign of life" in line]
    assert len(lines) == 2, outcomes
    first = f"ringreduce warning [rank {1 if victim == 0 else 0}] rank {victim} is "
    assert lines[0].startswith(f"{first}stalled: its process has given no sign of life for 3."), lines
    assert lines[1].startswith(f"{first}back, after "), lines


def goes_on() -> int:
    with ringreduce.init() as world:
        send_to_test(str(os.getpid()))
        rounds = 0
        while True:
            over = ringreduce.allreduce(np.array([world.rank == 0 and has_word()], np.int64), op=ringreduce.Max)
            rounds += 1
            if over[0]:
                return rounds


def has_word() -> bool:
    import select

    descriptor = int(os.environ["RR_TEST_FDS"].split(",")[1])
    return bool(select.select([descriptor], [], [], 0)[0])


KINDS = 7
DRIPS = 6
"""The kind that sends a byte now and then, as the beginning of what a rank sends."""


def disturb(port: int, kind: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=SOON_S)
    with contextlib.suppress(OSError):
        if kind == 0:
            connection.close()
        elif kind == 1:
            connection.sendall(b"R")
        elif kind == 2:
            connection.sendall(os.urandom(4096))
        elif kind == 3:
            connection.sendall(b"RRT1\x01\0" + os.urandom(66))
        elif kind == 4:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            connection.close()
        elif kind == 5:
            connection.sendall(bytes(1 << 20))
        elif kind == DRIPS:
            connection.sendall(b"RRT1\x01")
    return connection


def test_a_thousand_strangers_do_not_disturb_a_job(tcp: dict[str, str]) -> None:
    with start_ranks(goes_on, 3, env=tcp) as job:
        pids = [int(job.receive(rank)) for rank in range(3)]
        ports = [listening_ports(pid) for pid in pids]
        assert [len(found) for found in ports] == [1, 1, 1]
        kept: list[socket.socket] = []
        for number in range(1000):
            kept.append(disturb(ports[number % 3][0], number % KINDS))
            if number % 100 == 0:
                for connection in kept[DRIPS::KINDS]:
                    with contextlib.suppress(OSError):
                        connection.sendall(b"\0")
        job.send(0, "over")
        rounds = [outcome.value for outcome in job.wait(HANG_S)]
        for connection in kept:
            connection.close()
    assert rounds[0] > 1
    assert len(set(rounds)) == 1


def of_this_process() -> dict[str, int]:
    """What a job must not leave behind."""
    return {what: len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")}


def reduce_for_ever() -> None:
    while True:
        ringreduce.allreduce(np.ones(100_000))


def loses_a_rank() -> tuple[dict[str, int], dict[str, int]]:
    with ringreduce.init():  # what only the first job of a process opens
        ringreduce.allreduce(np.ones(4))
    before = of_this_process()
    world = ringreduce.init()
    ringreduce.allreduce(np.ones(100_000))
    send_to_test("ready")
    if world.rank == 1:
        signal.pause()
    with pytest.raises(ringreduce.PeerLostError, match="lost rank 1"):
        reduce_for_ever()
    ringreduce.shutdown()
    deadline = Deadline(HANG_S)
    while any(count > before[what] for what, count in of_this_process().items()) and not deadline.expired():
        time.sleep(0.01)  # a thread that has ended may still be listed
    return before, of_this_process()


def test_a_lost_rank_leaves_no_socket_and_no_thread(tcp: dict[str, str]) -> None:
    with start_ranks(loses_a_rank, 3, env=tcp) as job:
        for rank in range(3):
            job.receive(rank)
        job.kill(1)
        outcomes = job.wait(HANG_S)
    for rank in (0, 2):
        assert outcomes[rank].value is not None, outcomes[rank]
        before, after = outcomes[rank].value
        assert all(after[what] <= before[what] for what in before), outcomes[rank]


def is_interrupted_all_the_time() -> int:
    """Every millisecond a signal ends the system calls of this process with EINTR."""
    signals = 0

    def count(*_: object) -> None:
        nonlocal signals
        signals += 1

    signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with ringreduce.init() as world:
            more = True
            while more:
                x = np.arange(3000, dtype=np.float32) + world.rank
                total = ringreduce.allreduce(x, op=ringreduce.Sum)
                assert (total == np.arange(3000) * world.size + sum(range(world.size))).all()
                more = ringreduce.allreduce(np.array([signals]), op=ringreduce.Min)[0] < 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return signals


def test_signals_without_end(tcp: dict[str, str]) -> None:
    """The core's threads block signals; those who call and wait do not."""
    assert min(run_ranks(is_interrupted_all_the_time, 3, env=tcp)) >= 100


def forks() -> str:
    """A child that lives on does not keep its dead parent's connections open."""
    with ringreduce.init() as world:
        ringreduce.allreduce(np.ones(4))
        if world.rank == 1:
            child = os.fork()
            if child == 0:
                signal.pause()
            send_to_test(str(child))
            signal.pause()
        send_to_test("0")
        with pytest.raises(ringreduce.PeerLostError, match="lost rank 1"):
            ringreduce.allreduce(np.ones(4))
        return "lost"


def test_a_forked_child_does_not_keep_a_dead_rank_alive(tcp: dict[str, str]) -> None:
    with start_ranks(forks, 2, env=tcp) as job:
        child = int(job.receive(1))
        job.receive(0)
        job.kill(1)
        try:
            assert job.wait(HANG_S)[0].value == "lost"
        finally:
            os.kill(child, signal.SIGKILL)


def a_child_that_would_be_a_rank() -> str:
    rank = ringreduce.init().rank
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            ringreduce.init()
        except ringreduce.Error as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    ringreduce.shutdown()
    with ringreduce.init() as world:
        assert ringreduce.allreduce(rank, op=ringreduce.Sum) == world.size * (world.size - 1) // 2
    os.waitpid(child, 0)
    return os.read(read, 1000).decode()


def test_a_forked_child_does_not_meet_its_parents_job(tcp: dict[str, str]) -> None:
    for rank, text in enumerate(run_ranks(a_child_that_would_be_a_rank, 2, env=tcp)):
        assert text.startswith("NotInitializedError: "), text
        assert f"forked from rank {rank}" in text


# --- what is refused --------------------------------------------------------------------------------------------------


def test_many_ranks_come_to_the_rendezvous_at_once(tmp_path: Path) -> None:
    """More than it keeps connections that have proven nothing, each of them slow."""
    size = 150
    secret = read_secret(secret_file(tmp_path))
    port = free_port()

    def come(rank: int) -> int:
        met = meet(TcpMeeting("127.0.0.1", port, secret, rank, size, 1), Deadline(HANG_S))
        met.listener.close()
        return met.placed.placement.local_rank

    with ThreadPoolExecutor(size) as pool:
        assert list(pool.map(come, range(size))) == list(range(size))


INIT_ERROR = """
import os
import ringreduce
try:
    ringreduce.init(job=os.environ.get("JOB"))
except ringreduce.Error as error:
    print(f"{type(error).__name__}: {error}")
"""


def errors(environments: Mapping[int, Mapping[str, str]], size: int) -> list[str]:
    """What init() raises on some ranks of a job, each of which has an environment of its own."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, environment in environments.items():
            place = {"RINGREDUCE_RANK": str(rank), "RINGREDUCE_SIZE": str(size), "RINGREDUCE_INIT_TIMEOUT": "3"}
            ranks.append(
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", INIT_ERROR],
                        env={**clean_environment(), **place, **environment},
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            )
            stack.callback(ranks[-1].kill)
        return [process.communicate(timeout=HANG_S)[0].strip() for process in ranks]


def test_ranks_with_other_secrets_do_not_meet(tcp: dict[str, str], tmp_path: Path) -> None:
    other = tcp | {"RINGREDUCE_SECRET_FILE": str(secret_file(tmp_path, "other", b"f" * 32))}
    first, second = errors({0: tcp, 1: other}, 2)
    assert first.startswith("TimeoutError: [rendezvous] rank 0/2: rank 1 did not come to 127.0.0.1:"), first
    assert "did not know the job's secret" in first
    assert second.startswith("MismatchError: [rendezvous] rank 1/2: what listens at")
    assert "does not know this job's secret" in second


def test_ranks_of_another_job_with_the_same_secret_do_not_meet(tcp: dict[str, str]) -> None:
    first, second = errors({0: tcp | {"JOB": "new"}, 1: tcp | {"JOB": "old"}}, 2)
    assert first.startswith("TimeoutError: [rendezvous] rank 0/2: rank 1 did not come"), first
    assert second.startswith("MismatchError: "), second


def test_ranks_that_do_not_come_are_named_everywhere(tcp: dict[str, str]) -> None:
    texts = errors({0: tcp, 1: tcp}, 4)
    for rank, text in enumerate(texts):
        assert text.startswith(f"TimeoutError: [rendezvous] rank {rank}/4: "), text
        assert "ranks 2, 3 did not come" in text, text


def test_rank_0_that_does_not_come(tcp: dict[str, str]) -> None:
    (text,) = errors({1: tcp}, 2)
    assert text.startswith("TimeoutError: [rendezvous] rank 1/2: no connection to rank 0 at 127.0.0.1:"), text
    assert "Connection refused" in text


def test_two_processes_that_are_one_rank(tcp: dict[str, str]) -> None:
    same = {"RINGREDUCE_RANK": "1"}
    texts = errors({0: tcp, 1: tcp, 2: tcp | same}, 4)
    assert all(text.startswith("MismatchError: ") and "two processes say they are rank 1" in text for text in texts)


def test_ranks_that_differ_in_their_number(tcp: dict[str, str]) -> None:
    texts = errors({0: tcp, 1: tcp | {"RINGREDUCE_SIZE": "5"}}, 3)
    assert all("rank 1 on" in text and "says the job has 5 ranks, rank 0 says 3" in text for text in texts), texts


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RINGREDUCE_ADDRESS": ""}, ["UnavailableError", "RINGREDUCE_ADDRESS=host:port"]),
        ({"RINGREDUCE_ADDRESS": "here"}, ["InvalidArgumentError", "RINGREDUCE_ADDRESS='here'", '"host:port"']),
        ({"RINGREDUCE_ADDRESS": "192.0.2.1:29500"}, ["InvalidArgumentError", "cannot listen at 192.0.2.1:29500"]),
        ({"RINGREDUCE_SECRET_FILE": ""}, ["InvalidArgumentError", "no secret_file", "umask 077"]),
        ({"RINGREDUCE_SECRET_FILE": "/nowhere"}, ["InvalidArgumentError", "/nowhere", "cannot be read"]),
        ({"RINGREDUCE_TRANSPORT": "mpi"}, ["InvalidArgumentError", "RINGREDUCE_TRANSPORT=mpi"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_settings_that_cannot_be(tcp: dict[str, str], change: dict[str, str], words: list[str]) -> None:
    (text,) = errors({0: tcp | change}, 2)
    assert all(word in text for word in words), text


@pytest.mark.parametrize("encrypt", ["off", "on"])
def test_a_machine_without_libcrypto(tcp: dict[str, str], tmp_path: Path, encrypt: str) -> None:
    """Files that are no libraries hide those of the machine. Nobody listens or dials: there is no weaker handshake."""
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):
        (tmp_path / name).touch()
    hidden = {"LD_LIBRARY_PATH": str(tmp_path), "RINGREDUCE_ENCRYPT": encrypt}
    for text in errors({0: tcp | hidden, 1: tcp | hidden}, 2):
        assert text.startswith("UnavailableError: "), text
        assert "libcrypto.so.3 (or .so.1.1) was not found" in text
        assert "apt-get install libssl3" in text


def test_the_secret_is_for_its_user_alone(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    assert len(read_secret(path)) == 32
    path.chmod(0o640)
    with pytest.raises(InvalidArgumentError, match="can be read or written by other users"):
        read_secret(path)
    with pytest.raises(InvalidArgumentError, match="has 5 bytes, fewer than 16"):
        read_secret(secret_file(tmp_path, "short", b"12345"))


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "fe80::1:29500"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="host:port"):
        parse_address(text)


def test_an_address_goes_by_the_name_of_who_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Placement(0, 2, 0, 2, 0, 1, "ringrun", "")
    monkeypatch.setenv("RINGREDUCE_ADDRESS", "here")
    for given, shown in (("here", "RINGREDUCE_ADDRESS='here'"), ("there", "address 'there'")):
        with pytest.raises(InvalidArgumentError, match=f'^{shown} is not of the form "host:port"'):
            source(place, TcpWanted(given, "", "auto", None))
    with pytest.raises(InvalidArgumentError, match=r"^RINGREDUCE_ADDRESS='a\.\.b:1': 'a\.\.b' cannot be a "):
        host_and_port("a..b:1")


@pytest.mark.parametrize("name", ["a..b", "x" * 64])
def test_names_that_no_host_can_have(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be a host's name"):
        parse_address(f"{name}:29500")


# --- the lab ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="lab")
def four_hosts() -> Iterator[Lab]:
    with Lab(hosts=4, rate="1gbit") as lab:
        secret_file(lab.folder)
        yield lab


@needs_lab
def test_a_job_on_four_hosts_without_mpi(lab: Lab) -> None:
    with train_job(lab, 20) as ranks:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    for rank, output in enumerate(outputs):
        assert output.splitlines() == [f"ready {rank % 2} 2 {rank // 2} 4", "done"], output


@needs_lab
@pytest.mark.parametrize("host", ["a", "c"])
def test_a_killed_leader_is_lost_on_all_hosts(lab: Lab, host: str) -> None:
    with train_job(lab, 10**9) as ranks:
        assert all(line.startswith("ready") for line in first_lines(ranks))
        victim = "abcd".index(host) * 2
        os.kill(pid_of(lab, host, victim), signal.SIGKILL)
        killed_s = time.time()
        for rank in set(range(8)) - {victim}:
            output = ranks[rank].communicate(timeout=HANG_S)[0]
            assert f"lost rank {victim}" in output, output
            assert float(output.split()[0]) - killed_s < SOON_S


@needs_lab
def test_a_host_that_vanishes_is_lost_on_all_hosts(lab: Lab) -> None:
    with train_job(lab, 10**9) as ranks:
        assert all(line.startswith("ready") for line in first_lines(ranks))
        lab.cut("b")
        try:
            for rank, process in enumerate(ranks):
                output = process.communicate(timeout=SOON_S)[0]
                assert "lost rank" in output, (rank, output)
                assert "no sign of life" in output, (rank, output)
        finally:
            lab.mend("b")


COUNTS = """
import sys, time
import numpy as np
import ringreduce as rr
rr.init()
steps = 0
while steps < int(sys.argv[1]):
    assert rr.allreduce(np.full(5000, steps), op=rr.Sum)[4999] == steps * rr.size()
    steps += 1
    if rr.rank() == 0:
        with open(sys.argv[0] + ".steps", "w") as file:
            file.write(str(steps))
    if steps == 5:
        print("ready", flush=True)
    time.sleep(0.02)
"""


@needs_lab
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("flaps", "gone_s"),
    [(3, 2.0), pytest.param(100, 2.0, marks=pytest.mark.long), pytest.param(30, 0.5, marks=pytest.mark.long)],
)
def test_a_host_that_vanishes_for_a_while_again_and_again_is_not_lost(lab: Lab, flaps: int, gone_s: float) -> None:
    with train_job(lab, 10**9, per_host=1, text=COUNTS) as ranks:
        assert first_lines(ranks) == ["ready"] * 4

        def steps() -> int:
            while not (text := (lab.folder / "train.py.steps").read_text()):
                pass  # it is just being written
            return int(text)

        survived = 0
        for _ in range(flaps):
            lab.cut("b")
            before = steps()
            time.sleep(gone_s)
            assert steps() <= before + 1
            lab.mend("b")
            time.sleep(1)  # as long as the kernel may wait before it sends again what was lost
            before, deadline = steps(), Deadline(HANG_S)
            while steps() <= before + 1 and [process.poll() for process in ranks] == [None] * 4:
                assert not deadline.expired()
                time.sleep(0.1)
            gone = [process.communicate()[0] for process in ranks if process.poll() is not None]
            assert not gone, (survived, gone)
            survived += 1
    assert survived == flaps


@needs_lab
def test_a_network_that_is_dead_in_one_direction(lab: Lab) -> None:
    with train_job(lab, 10**9) as ranks:
        assert all(line.startswith("ready") for line in first_lines(ranks))
        lab.cut_direction("a", "c")
        try:
            outputs = [process.communicate(timeout=SOON_S)[0] for process in ranks]
        finally:
            lab.mend_direction("a", "c")
    # Either side may notice first, and tells the others what it knows.
    sender = r"lost rank 4: its host no longer gets what rank 0 sends: for 2\.8 s it has acknowledged nothing, although"
    receiver = r"lost rank 0: no sign of life from its host: nothing has arrived from it for \d\.\d s"
    for rank, output in enumerate(outputs):
        assert re.search(f"{sender}|{receiver}", output), (rank, output)


LISTEN = """
import socket, threading
import numpy as np
import ringreduce as rr

heard = []
ears = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
ears.settimeout(0.1)
is_over = threading.Event()

def listen():
    while True:
        try:
            heard.append(ears.recv(1 << 17))
        except TimeoutError:
            if is_over.is_set():
                return

listener = threading.Thread(target=listen)
listener.start()
rr.init()
data = np.frombuffer(b"seen on the wire" * 2000, np.uint8).copy()
same = rr.broadcast(data, 0, name="name-of-a-tensor")
assert same.tobytes() == data.tobytes()
rr.barrier()
rr.shutdown()
is_over.set()
listener.join()
heard = b"".join(heard)
print(len(heard) > 30_000, b"seen on the wire" in heard, b"name-of-a-tensor" in heard)
"""


@needs_lab
@pytest.mark.parametrize(("encrypt", "data_is_seen"), [("auto", True), ("off", True), ("on", False)])
def test_who_listens_on_the_network_sees_no_name_and_with_encryption_no_data(
    lab: Lab, encrypt: str, data_is_seen: bool
) -> None:
    with train_job(lab, 1, "ab", 1, text=LISTEN, env={"RINGREDUCE_ENCRYPT": encrypt}) as ranks:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in ranks]
    assert outputs == [f"True {data_is_seen} False\n"] * 2  # the lab's addresses are private ones
