"""RINGREDUCE_PORTS: how it is read, that ranks listen at no other port, and what is said when there are too few."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest
from ports import free_port, own_ports
from ranks import run_ranks
from tcp_jobs import tcp_environment

import ringreduce as rr
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.tcp.listening_ports import ANY, allowed_ports, listening
from ringreduce.job.tcp.rendezvous import own_ports as ranks_ports
from ringreduce.job.tcp.slurm_step import port as slurm_port


def test_what_may_be_written() -> None:
    assert allowed_ports("") == ANY
    assert allowed_ports("29400-29402") == range(29400, 29403)
    assert allowed_ports("1-65535") == range(1, 65536)
    assert allowed_ports("7") == range(7, 8)


@pytest.mark.parametrize(
    "text", ["0", "5-4", "65536", "1-65536", "-", "5-", "-5", "a-b", "1-2-3", "1 - 2", "²-³", "5,6"]
)
def test_what_may_not(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^RINGREDUCE_PORTS={text}: expected FIRST-LAST"):
        allowed_ports(text)


def test_a_step_of_slurm_has_one_of_them() -> None:
    step = {"SLURM_JOB_ID": "1234", "SLURM_STEP_ID": "0"}
    steps = [step | {"SLURM_STEP_ID": str(number)} for number in range(16)]
    assert {slurm_port(one, range(500, 564)) for one in steps} == set(range(500, 516)), "in the first quarter"
    assert slurm_port(step, range(500, 501)) == 500


def test_the_next_free_one_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            listening("127.0.0.1", range(port, port + 50), 1) as one,
            listening("127.0.0.1", range(port, port + 50), 1) as two,
        ):
            ports = [each.getsockname()[1] for each in (one, two)]
            assert len({port, *ports}) == 3
            assert all(port < each < port + 50 for each in ports)
        with pytest.raises(UnavailableError, match="RINGREDUCE_PORTS: all 1 ports are taken"):
            listening("127.0.0.1", range(port, port + 1), 1)


def listen(first: int, last: int) -> None:
    for _ in range(3):  # the second job has the ports of the first
        with rr.init() as world:
            assert rr.allreduce(np.ones(3), op=rr.Sum)[0] == world.size
            assert own_ports(), "a rank that TCP connects listens"
            assert all(first <= port <= last for port in own_ports()), own_ports()
        assert own_ports() == []


def test_ranks_listen_at_no_other(tmp_path: Path) -> None:
    first = free_port()
    env = tcp_environment(tmp_path) | {"RINGREDUCE_PORTS": f"{first}-{first + 99}"}
    run_ranks(listen, 3, args=(first, first + 99), env=env)


def lack_a_port() -> str:
    try:
        with rr.init():
            return "joined"
    except rr.Error as error:
        return f"{type(error).__name__}: {error}"


def test_too_few_are_an_error(tmp_path: Path) -> None:
    port = str(free_port())
    for said in run_ranks(lack_a_port, 2, env=tcp_environment(tmp_path) | {"RINGREDUCE_PORTS": port}):
        assert said.startswith("UnavailableError: "), said
        assert "RINGREDUCE_PORTS: all 1 ports are taken" in said


def test_a_port_where_rank_0_is_awaited_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_PORTS", "500-507")
    assert list(ranks_ports()) == list(range(500, 508))
    monkeypatch.setenv("RINGREDUCE_ADDRESS", "10.0.0.1:503")
    assert list(ranks_ports()) == [500, 501, 502, 504, 505, 506, 507]
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert list(ranks_ports()) == [502, 504, 505, 506, 507]
