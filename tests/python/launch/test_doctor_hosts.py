"""ringreduce doctor -H: what it says of hosts and of the network between them, well and not."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from deadlines import HANG_S, SOON_S

from ringreduce.bench.pair import ORDER, Answerer, Channel, Kind, called, measured, pairs
from ringreduce.doctor import network
from ringreduce.doctor.finding import Finding
from ringreduce.job.deadline import Deadline
from ringreduce.lab import network as lab_network
from ringreduce.lab.lab import Lab
from ringreduce.lab.requirements import missing
from ringreduce.launch.python import run_module

needs_lab = pytest.mark.skipif(missing() is not None, reason=str(missing()))
KEY = b"k" * 32


# --- a pair -----------------------------------------------------------------------------------------------------------


@pytest.fixture(name="address")
def of_an_answerer() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answerer = Answerer(listener, KEY)
        yield listener.getsockname()
        answerer.close()


def test_a_pair_is_measured(address: tuple[str, int]) -> None:
    found = measured(address, KEY)
    assert found["problem"] == ""
    assert 0 < found["least_s"] <= found["round_trip_s"] <= found["p99_s"] < SOON_S
    assert found["there"] > 1e6
    assert found["back"] > 1e6
    assert abs(found["clock_s"]) < SOON_S
    assert found["mss"] > 500


def test_who_has_another_key_is_told_nothing(address: tuple[str, int]) -> None:
    assert "another program" in measured(address, b"x" * 32)["problem"]
    with socket.create_connection(address, SOON_S) as connection:
        stranger = Channel(connection, Deadline(SOON_S))
        stranger.send(bytes(32))
        stranger.receive(64)
        stranger.send(bytes(32) + ORDER.pack(Kind.PING, 0))
        with pytest.raises((EOFError, ConnectionError)):
            stranger.receive(1)
    assert measured(address, KEY)["problem"] == "", "and the next caller is answered"


def test_strangers_that_say_nothing_cost_a_second_each(address: tuple[str, int]) -> None:
    with socket.create_connection(address, SOON_S):
        assert measured(address, KEY)["problem"] == ""


def test_an_answerer_is_closed_while_it_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answerer = Answerer(listener, KEY)
        with called(listener.getsockname(), KEY) as connection:
            channel = Channel(connection, Deadline(SOON_S))
            channel.send(ORDER.pack(Kind.TAKE, 1000))
            answerer.close()
            with pytest.raises((EOFError, ConnectionError)):
                channel.receive(1)


@pytest.mark.parametrize("order", [(0, 0), (9, 0), (Kind.TAKE, 1 << 30), (Kind.GIVE_STREAM, 1 << 30)])
def test_orders_that_are_none_end_the_connection(address: tuple[str, int], order: tuple[int, int]) -> None:
    with called(address, KEY) as connection:
        channel = Channel(connection, Deadline(SOON_S))
        channel.send(ORDER.pack(*order))
        with pytest.raises((EOFError, ConnectionError)):
            channel.receive(1)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    assert measured(address, KEY)["problem"] == "no connection: Connection refused"


def test_an_answerer_that_goes_away() -> None:
    """After the proof, and after so many orders."""
    for orders in range(3):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            class Leaves(Answerer):
                left = orders

                def _answer(self, channel: Channel) -> None:
                    if self.left == 0:
                        raise EOFError
                    self.left -= 1
                    super()._answer(channel)

            answerer = Leaves(listener, KEY)
            problem = measured(listener.getsockname(), KEY)["problem"]
            answerer.close()
        assert problem.startswith("connected, and then no answer to small packets: "), problem


def test_which_pairs() -> None:
    assert pairs(1) == []
    assert len(pairs(8)) == 28
    many = pairs(20)
    assert len(many) == 19 + 18
    assert {other for one, other in many if one == 0} == set(range(1, 20))


# --- what is made of it -----------------------------------------------------------------------------------------------


def host(**changes: Any) -> dict[str, Any]:
    facts = {
        "name": "x",
        "kernel": "6.1",
        "cores": 2,
        "python": "3.11.7",
        "ringreduce": "0.1.0",
        "interfaces": [["eth0", "10.0.0.1", 1500, 10_000], ["eth1", "10.0.0.2", 9000, 10_000]],
        "own_name": ["10.0.0.1"],
        "files": 4096,
        "sysctl": {"net/ipv4/tcp_wmem": "4096 16384 4194304", "net/ipv4/tcp_rmem": "4096 131072 6291456"},
    }
    return facts | changes


def pair(caller: int = 0, answerer: int = 1, **changes: Any) -> dict[str, Any]:
    found = {
        "problem": "",
        "round_trip_s": 1e-4,
        "p99_s": 2e-4,
        "clock_s": 0.0,
        "there": 1.2e8,
        "back": 1.2e8,
        "nbytes": 1 << 27,
    }
    return found | {"resent": 0, "mss": 1448, "caller": caller, "answerer": answerer, "ip": "10.0.0.2"} | changes


def notes(*found: dict[str, Any], **facts: Any) -> list[Finding]:
    said = network.of_pairs(["x", "y", "z"], {rank: host(**facts) for rank in range(3)}, found)
    return [one for one in said if one.status != "ok"]


def test_a_good_pair_has_no_note() -> None:
    (one,) = network.of_pairs(["x", "y"], {0: host(), 1: host()}, [pair()])
    value = "100 us round trip (99 %: 200 us), 960 Mbit/s there, 960 Mbit/s back"
    assert one == Finding("network", "x - y", value)
    assert not [one for one in network.of_hosts(["x"], {0: host()}) if one.status != "ok"]


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        ([pair(problem="no connection: timed out")], "problem", "a packet filter"),
        ([pair(problem="small packets pass, full ones do not come back: x")], "problem", "ping -M do -s 8972 10.0.0.2"),
        ([pair(problem="has not come to 10.0.0.1:5, the first host's port", missing=1)], "problem", "a packet filter"),
        ([pair(back=1e7)], "note", "one direction is slower"),
        ([pair(), pair(1, 2), pair(0, 2, there=1e7, back=1e7)], "note", "half as fast as the others (960 Mbit/s)"),
        ([pair(resent=5000)], "note", "packets are lost on the way"),
        ([pair(clock_s=-3.0)], "note", "run an NTP client"),
    ],
)
def test_what_is_wrong_has_a_cure(found: list[dict[str, Any]], status: str, words: str) -> None:
    (one,) = notes(*found)
    assert one.status == status
    assert words in one.hint
    assert "missing" not in found[0] or one.value == "y has not come to 10.0.0.1:5, the first host's port"


def test_a_long_way_needs_windows() -> None:
    sent, received = notes(pair(round_trip_s=0.1))  # 12 MB are under way
    assert sent.value == "net.ipv4.tcp_wmem allows 4.0 MiB a connection, 11.4 MiB are under way"
    assert sent.hint.endswith("raise the last number of sysctl net.ipv4.tcp_wmem to 67108864 where it is less")
    assert received.value.startswith("net.ipv4.tcp_rmem allows 6.0 MiB")
    assert not notes(pair(round_trip_s=0.008))  # 1 MB, a fourth of what is allowed


def test_a_long_way_and_pauses() -> None:
    (one,) = notes(pair(round_trip_s=0.01, there=1e6, back=1e6), sysctl={"net/ipv4/tcp_slow_start_after_idle": "1"})
    assert "tcp_slow_start_after_idle=0" in one.hint


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"files": 256}, "ulimit -n 4096"),
        ({"own_name": []}, "set RINGREDUCE_ADDRESS"),
        ({"interfaces": []}, "connect it to a network"),
    ],
)
def test_what_is_wrong_with_a_host_has_a_cure(facts: dict[str, Any], words: str) -> None:
    (one,) = [one for one in network.of_hosts(["x"], {0: host(**facts)}) if one.status != "ok"]
    assert words in one.hint


# --- in the lab -------------------------------------------------------------------------------------------------------


@pytest.fixture(name="lab", scope="module")
def three_hosts() -> Iterator[Lab]:
    with Lab(4, rate="100mbit") as lab:  # so slow that what else the machine does is not seen
        yield lab


Doctor = Callable[..., tuple[int, list[dict[str, str]]]]


@pytest.fixture(name="doctor")
def command(lab: Lab) -> Doctor:
    """Runs it on host a: the exit status, and the findings."""

    def run(hosts: str, **env: str) -> tuple[int, list[dict[str, str]]]:
        words = [*run_module("ringreduce.doctor"), "-H", hosts, "--json", f"--ssh-args=-F {lab.ssh.parent / 'config'}"]
        done = lab.run("a", words, env=env, timeout_s=HANG_S)
        assert done.output.startswith("{"), done.output
        return done.status, json.loads(done.output)["findings"]

    return run


def of(findings: list[dict[str, str]], topic: str) -> dict[str, dict[str, str]]:
    return {finding["name"]: finding for finding in findings if finding["topic"] == topic}


@needs_lab
def test_three_hosts_that_are_well(doctor: Doctor) -> None:
    status, findings = doctor("a,b,c")
    assert status == 0, findings
    assert list(of(findings, "network")) == ["a - b", "a - c", "b - c"]
    for finding in of(findings, "network").values():
        assert finding["status"] == "ok", findings
        assert "round trip" in finding["value"]
        assert "bit/s there" in finding["value"]
    assert "10.77.0.2 (eth0, MTU 1500" in of(findings, "host b")["addresses"]["value"]
    assert of(findings, "host c")["own name"]["value"] == "c leads to 10.77.0.3"


@needs_lab
def test_a_slow_direction_is_noted(lab: Lab, doctor: Doctor) -> None:
    change = ["tc", "qdisc", "change", "dev", "eth0", "root", "tbf", "burst", "128kb", "latency", "50ms", "rate"]
    assert lab.run("c", [*change, "10mbit"]).status == 0
    try:
        status, findings = doctor("a,c")
    finally:
        assert lab.run("c", [*change, "100mbit"]).status == 0
    assert status == 0, findings
    assert "one direction is slower" in of(findings, "network")["a - c"]["hint"], findings


@needs_lab
def test_full_packets_that_are_lost(lab: Lab, doctor: Doctor) -> None:
    """ssh goes by addresses whose route has a small MTU; the job by others, and on its way is a hop with a smaller MTU
    than it says."""
    for number, host in enumerate("abcd", 1):
        setup = (
            f"ip link set eth0 gso_max_segs 1; ip addr add 10.88.0.{number}/24 dev eth0; "
            "ip route change 10.77.0.0/24 dev eth0 mtu lock 900"
        )
        assert lab.run(host, ["sh", "-ec", setup]).status == 0
    lab_network.tool_in(lab._switch, ["ip", "link", "set", "port-b", "mtu", "1400"])
    try:
        status, findings = doctor("a,b,c,d", RINGREDUCE_ADDRESS="10.88.0.1:29400")
    finally:
        lab_network.tool_in(lab._switch, ["ip", "link", "set", "port-b", "mtu", "1500"])
    assert status == 1, findings
    pairs = of(findings, "network")
    assert len(pairs) == 6
    for name, found in pairs.items():
        assert (found["status"] == "problem") == ("b" in name), findings  # a busy machine may make a pair slow: a note
    assert pairs["a - b"]["value"].startswith("at 10.88.0.2: small packets pass, full ones do not get there"), findings
    assert "ping -M do -s 1472 10.88.0.2" in pairs["a - b"]["hint"]
    assert "small packets pass, full ones do not" in pairs["b - c"]["value"]


@needs_lab
def test_a_host_that_cannot_be_reached_is_named(doctor: Doctor) -> None:
    status, findings = doctor("a,nobody")
    assert status == 1
    assert "no such name" in of(findings, "start")["nobody"]["value"], findings


@needs_lab
def test_one_host_that_cannot_be_reached_is_a_problem(doctor: Doctor) -> None:
    status, findings = doctor("nobody")
    assert status == 1
    assert "no such name" in of(findings, "start")["nobody"]["value"], findings


@needs_lab
def test_one_host_is_looked_at_alone(doctor: Doctor) -> None:
    status, findings = doctor("b")
    assert status == 0, findings
    assert of(findings, "network") == {}
    assert "b: Linux" in of(findings, "host b")["system"]["value"]


@needs_lab
def test_a_list_that_is_none(lab: Lab) -> None:
    for words in (["-H", "a:x"], ["--ssh-args=-4"], ["-p", "22"]):
        done = lab.run("a", [*run_module("ringreduce.doctor"), *words])
        assert done.status == 2, done
        assert done.output.startswith("InvalidArgumentError: ")
