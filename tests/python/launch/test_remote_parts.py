"""The parts of ringrun over several hosts: messages, addresses, what ssh says, which variables and ranks go where."""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import json
import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S
from fake_agent import path_with_ssh
from processes import completed
from ranks import clean_environment

from ringreduce import _core
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.tcp.interfaces import Interfaces, interfaces
from ringreduce.job.tcp.listening_ports import ANY
from ringreduce.launch.command_line import host_options, options
from ringreduce.launch.command_line.hosts import Host
from ringreduce.launch.events import handle
from ringreduce.launch.python import run_code, run_module
from ringreduce.launch.remote import ssh
from ringreduce.launch.remote.addresses import TRY_S, Gate, mac, reasons_against
from ringreduce.launch.remote.call import call_orders
from ringreduce.launch.remote.launch import filled, orders
from ringreduce.launch.remote.meeting import Meeting
from ringreduce.launch.remote.messages import GREETING, HEADER, NBYTES_MOST, PROTOCOL, Kind, Unpacker, packed
from ringreduce.launch.remote.news import Listening, Ready, Tried, parsed

RINGRUN = run_module("ringreduce.launch.ringrun")
KEY = b"k" * 32

# --- Messages ---------------------------------------------------------------------------------------------------------


def test_messages_arrive_whole_however_they_are_cut() -> None:
    sent = [(Kind.SIGNAL, b'{"signal": 2}'), (Kind.OUTPUT, b"\0\xff" * 500), (Kind.INPUT, b"")]
    stream = b"".join(packed(kind, body) for kind, body in sent)
    for size in (1, 3, 7, 64, len(stream)):
        unpacker = Unpacker()
        pieces = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert [message for piece in pieces for message in unpacker.feed(piece)] == sent


@pytest.mark.parametrize("head", [HEADER.pack(0, 1), HEADER.pack(99, 1), HEADER.pack(Kind.EXIT, NBYTES_MOST + 1)])
def test_what_is_no_message_is_refused_before_its_content_is_there(head: bytes) -> None:
    with pytest.raises(MismatchError, match=r"is none of ringreduce's"):
        list(Unpacker().feed(head))


# --- Addresses --------------------------------------------------------------------------------------------------------


def test_interfaces_have_no_loopback_addresses() -> None:
    assert all(ip != "::1" and not ip.startswith("127.") for _, ip in interfaces())
    names = {name for _, name in socket.if_nameindex()}
    assert {name for name, _ in interfaces()} <= names


def test_an_interface_may_have_any_name() -> None:
    isolated = ["unshare", "--user", "--map-root-user", "--net"]
    name = os.fsdecode(b"l\xff")
    script = "ip link set lo name $1 && ip addr add 10.9.8.7/24 dev $1 && ip addr add fd00::7/64 dev $1"
    if not shutil.which("unshare") or completed([*isolated, "sh", "-c", script, "sh", name]).returncode:
        pytest.skip("there can be no network namespace with `ip` in it here")
    code = "from ringreduce.job.tcp.interfaces import interfaces; print(ascii(interfaces()))"
    done = completed([*isolated, "sh", "-c", f'{script}; ip link set up $1; shift; "$@"', "sh", name, *run_code(code)])
    assert ast.literal_eval(done.stdout) == [(name, "10.9.8.7"), (name, "fd00::7")], done.stderr


def served(selector: selectors.BaseSelector, child: subprocess.Popen[str]) -> str:
    """Lets a gate answer until the child has ended; returns what the child has said."""
    while child.poll() is None:
        handle(selector, 0.01)
    return child.communicate(timeout=HANG_S)[0]


TRY = """
import sys
from ringreduce.launch.remote.addresses import reasons_against
addresses = [(ip, int(port)) for ip, port in zip(sys.argv[3::2], sys.argv[4::2])]
print(reasons_against(bytes.fromhex(sys.argv[1]), addresses, float(sys.argv[2])))
"""


def test_an_address_counts_where_the_right_host_answers() -> None:
    with selectors.PollSelector() as selector, socket.socket() as closed, socket.socket() as silent:
        closed.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        gate = Gate(KEY, ["127.0.0.1", "127.0.0.2"], ANY, selector, 1)
        assert gate.refused == {}
        assert [ip for ip, _ in gate.addresses] == ["127.0.0.1", "127.0.0.2"]
        tried = [*gate.addresses, closed.getsockname(), silent.getsockname()]
        words = [str(word) for address in tried for word in address]
        for key, expected in (
            (KEY, ["", "", "Connection refused", "no answer within 3 s"]),
            (b"x" * 32, [*["another program, or machine, answers"] * 2, "Connection refused", "no answer within 3 s"]),
        ):
            command = run_code(TRY, key.hex(), str(TRY_S), *words)
            with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as child:
                assert served(selector, child).strip() == str(expected)
        gate.close()
        assert not selector.get_map()


def test_a_gate_keeps_its_port_for_rank_0() -> None:
    with selectors.PollSelector() as selector:
        gate = Gate(KEY, ["127.0.0.1", "192.0.2.1"], ANY, selector, 1)
        assert list(gate.refused) == ["192.0.2.1"]
        (address,) = gate.addresses
        gate.close_to_callers()
        assert reasons_against(KEY, [address]) == ["Connection refused"]
        with socket.socket() as another, pytest.raises(OSError, match="in use"):
            another.bind(address)
        with socket.socket() as rank_0:  # as tcp/rendezvous_server.py does
            rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rank_0.bind(address)
            rank_0.listen()
        gate.close()
        with socket.socket() as another:
            another.bind(address)


def reasons(selector: selectors.BaseSelector, address: tuple[str, int], callers: int) -> list[str]:
    """What so many callers at a time find at a gate's address, from a process of their own, however slow it is."""
    command = run_code(TRY, KEY.hex(), str(HANG_S), *[address[0], str(address[1])] * callers)
    with subprocess.Popen(command, env=clean_environment(), stdout=subprocess.PIPE, text=True) as child:
        return list(ast.literal_eval(served(selector, child)))


@pytest.mark.parametrize("others", [1, 600])
def test_a_gate_answers_all_hosts_of_a_job_at_once(others: int) -> None:
    """600 callers, as of 200 hosts and three addresses; also where it has room for few, as where descriptors are."""
    with selectors.PollSelector() as selector:
        gate = Gate(KEY, ["127.0.0.1"], ANY, selector, others)
        assert reasons(selector, gate.addresses[0], 600) == [""] * 600
        gate.close()


def test_silent_callers_keep_nobody_out() -> None:
    with selectors.PollSelector() as selector, ExitStack() as silent:
        gate = Gate(KEY, ["127.0.0.1"], ANY, selector, 1)
        for _ in range(400):
            silent.enter_context(socket.create_connection(gate.addresses[0]))
            handle(selector, 0)
        for _ in range(3):
            assert reasons(selector, gate.addresses[0], 1) == [""]
        gate.close()
        assert not selector.get_map()


def test_a_program_that_ends_its_connections_is_no_gate() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(b"busy")

        thread = threading.Thread(target=serve)
        thread.start()
        assert reasons_against(KEY, [server.getsockname()], 0.2) == [
            "no answer within 0.2 s: connections are ended there"
        ]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(HANG_S)


def test_a_gate_listens_at_every_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a name that leads to an address first which this host has not, such as an IPv6 address of another network."""
    real = socket.getaddrinfo

    def found(host: str, port: int, **words: Any) -> list[Any]:
        names = {"node": ["192.0.2.7", "127.0.0.1", "127.0.0.2", "127.0.0.1"], "every": ["0.0.0.0", "fe80::1%lo"]}
        return [one for ip in names.get(host, [host]) for one in real(ip, port, **words)]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with selectors.PollSelector() as selector:
        gate = Gate(KEY, ["node", "every"], ANY, selector, 1)
        assert [ip for ip, _ in gate.addresses] == ["127.0.0.1", "127.0.0.2"]
        assert gate.refused == {
            "every": "it is not the address of one interface that all hosts know",
            "192.0.2.7": os.strerror(errno.EADDRNOTAVAIL),
        }
        gate.close()


def test_a_gate_bears_callers_who_say_nothing_or_too_much() -> None:
    with selectors.PollSelector() as selector:
        gate = Gate(KEY, ["127.0.0.1"], ANY, selector, 1)
        callers = [socket.create_connection(gate.addresses[0]) for _ in range(20)]
        for caller in callers[1:]:
            caller.sendall(b"x" * 100)
        callers[2].close()
        nonce = os.urandom(32)
        with socket.create_connection(gate.addresses[0]) as right:
            right.sendall(nonce)
            right.settimeout(0)
            answer = b""
            while len(answer) < 32:
                handle(selector, 0.01)
                try:
                    answer += right.recv(32)
                except BlockingIOError:
                    continue
            assert answer == mac(KEY, nonce)
        gate.close()
        assert not selector.get_map()
        for caller in callers:
            caller.close()


# --- The meeting ------------------------------------------------------------------------------------------------------


def test_rank_0s_host_is_told_how_many_hosts_look_for_it() -> None:
    told: list[Any] = []
    names = ["x", "y", "z"]
    made = Meeting(names, lambda *message: told.append(message), "1.0", Interfaces(), ("", 0), ANY)
    for host in range(3):
        made.on_ready(host, Ready("1.0", names[host], str(host), "", "", [("eth0", f"192.0.2.{host}")]))
    ((host, kind, order),) = told
    assert (host, kind, order["hosts"], order["others"]) == (0, Kind.LISTEN, ["192.0.2.0"], 2)


def meeting() -> tuple[Meeting, list[tuple[int, Kind]]]:
    """Of hosts x and y, which have said what they are; and what they are told."""
    told: list[tuple[int, Kind]] = []
    made = Meeting(["x", "y"], lambda host, kind, _: told.append((host, kind)), "1.0", Interfaces(), ("", 0), ANY)
    assert not made.on_ready(1, Ready("1.0", "y", "2", "", "", [("eth0", "192.0.2.2")]))
    with pytest.raises(MismatchError):
        made.on_listening(0, Listening([("192.0.2.1", 7)], {}))
    assert not made.on_ready(0, Ready("1.0", "x", "1", "", "", [("eth0", "192.0.2.1"), ("eth1", "192.0.2.9")]))
    return made, told


@pytest.mark.parametrize("address", [["192.0.2.1", 0], ["192.0.2.1", 70000], ["node", 7], ["a\0", 7], ["x" * 64, 7]])
def test_what_other_agents_are_to_try_is_an_address(address: list[Any]) -> None:
    """Their connect() would raise something else than an OSError, or look the name up."""
    with pytest.raises(MismatchError, match=r"^LISTENING at "):
        parsed(Kind.LISTENING, json.dumps({"addresses": [address], "refused": []}).encode())
    right = {"addresses": [["192.0.2.1", 7], ["fe80::1%eth0", 7]], "refused": []}
    assert parsed(Kind.LISTENING, json.dumps(right).encode()) == Listening([("192.0.2.1", 7), ("fe80::1%eth0", 7)], {})


def test_only_rank_0s_host_says_where_it_is_found() -> None:
    made, told = meeting()
    assert told == [(0, Kind.LISTEN)]
    for host, ip in ((1, "192.0.2.1"), (0, "203.0.113.9")):
        with pytest.raises(MismatchError, match="LISTENING where it was not asked to"):
            made.on_listening(host, Listening([(ip, 7)], {}))
    for host in (0, 1):
        with pytest.raises(MismatchError, match="TRIED what it was not asked for"):
            made.on_tried(host, Tried([""]))
    made.on_listening(0, Listening([("192.0.2.1", 7), ("192.0.2.9", 8)], {}))
    assert told[1:] == [(1, Kind.TRY)]
    with pytest.raises(MismatchError):
        made.on_listening(0, Listening([("192.0.2.1", 7)], {}))
    for host, reasons in ((0, ["", ""]), (1, [""])):
        with pytest.raises(MismatchError, match="TRIED what it was not asked for"):
            made.on_tried(host, Tried(reasons))
    assert made.on_tried(1, Tried(["Connection refused", ""])) == ("192.0.2.9", 8)


# --- What is started where --------------------------------------------------------------------------------------------


def test_hosts_are_filled_one_after_the_other() -> None:
    assert filled([Host("a", 2), Host("b", 2), Host("c", 2)], 2) == [Host("a", 2)]
    assert filled([Host("a", 2), Host("b", 2), Host("c", 2)], 5) == [Host("a", 2), Host("b", 2), Host("c", 1)]


def test_variables_that_go_to_other_hosts() -> None:
    environ = {
        "PATH": "/bin", "PYTHONPATH": "/mine", "NCCL_DEBUG": "INFO", "HOME": "/root", "SSH_AUTH_SOCK": "x", "MINE": "1",
        "OTHER": "2", "RINGREDUCE_RANK": "3", "HOROVOD_LOCAL_SIZE": "4", "RINGREDUCE_LOG_LEVEL": "debug",
    }  # fmt: skip
    read = options.read(
        ["-H", "elsewhere:2", "-x", "MINE", "-x", "NEW=a=b", "--cache-capacity", "7", "true"], "ringrun"
    )
    found = orders(read, environ)
    assert found.variables == {
        "PATH": "/bin", "PYTHONPATH": "/mine", "NCCL_DEBUG": "INFO", "MINE": "1", "NEW": "a=b",
        "RINGREDUCE_LOG_LEVEL": "debug", "HOROVOD_CACHE_CAPACITY": "7",
    }  # fmt: skip
    read = options.read(["-H", "elsewhere:2", "--encrypt", "true"], "ringrun")
    assert orders(read, {}).variables == {"RINGREDUCE_ENCRYPT": "on"}
    read = options.read(["-H", "elsewhere:2", "--network-interface", "eth0,ib0", "true"], "ringrun")
    assert orders(read, environ | {"NCCL_SOCKET_IFNAME": "x"}).interfaces == Interfaces(
        "--network-interface", ["eth0", "ib0"]
    )
    asked = ["-x", "RINGREDUCE_NETWORK_INTERFACE=ib0", "-x", "RINGREDUCE_ADDRESS=10.0.0.1:29400"]
    found = orders(options.read(["-H", "elsewhere:2", *asked, "true"], "ringrun"), {"RINGREDUCE_ADDRESS": ":29401"})
    assert found.interfaces == Interfaces("RINGREDUCE_NETWORK_INTERFACE", ["ib0"])
    assert found.address == ("10.0.0.1", 29400)
    read = options.read(["-H", "elsewhere:2", "true"], "ringrun")
    with pytest.raises(InvalidArgumentError, match="RINGREDUCE_INIT_TIMEOUT=soon"):
        orders(read, {"RINGREDUCE_INIT_TIMEOUT": "soon"})


def test_the_gpus_of_this_host_are_chosen_on_others_only_where_the_user_asks() -> None:
    """As in Horovod (horovod/runner/common/util/env.py); other variables of CUDA's go along."""
    environ = {"CUDA_VISIBLE_DEVICES": "2", "CUDA_LAUNCH_BLOCKING": "1"}
    read = options.read(["-H", "elsewhere:2", "true"], "ringrun")
    assert orders(read, environ).variables == {"CUDA_LAUNCH_BLOCKING": "1"}
    for asked, value in (("CUDA_VISIBLE_DEVICES", "2"), ("CUDA_VISIBLE_DEVICES=0", "0")):
        read = options.read(["-H", "elsewhere:2", "-x", asked, "true"], "ringrun")
        assert orders(read, environ).variables == {"CUDA_LAUNCH_BLOCKING": "1", "CUDA_VISIBLE_DEVICES": value}


def test_how_long_a_start_may_take_is_said_as_the_ranks_read_it() -> None:
    def seconds(environ: dict[str, str], *words: str) -> float:
        return orders(options.read(["-H", "elsewhere:2", *words, "true"], "ringrun"), environ).start_s

    assert seconds({}) == 60
    assert seconds({"HOROVOD_START_TIMEOUT": "600"}) == 600
    assert seconds({"HOROVOD_START_TIMEOUT": "600", "RINGREDUCE_INIT_TIMEOUT": "90"}) == 90
    assert seconds({"HOROVOD_START_TIMEOUT": "600"}, "--start-timeout", "7") == 7
    with pytest.raises(InvalidArgumentError, match=re.escape("HOROVOD_START_TIMEOUT=0: expected a number in 0.1..1e6")):
        seconds({"HOROVOD_START_TIMEOUT": "0"})


ALL = ["eth0", "eth1", "ib0", "docker0"]
NAMED = {
    ("", "", ""): ALL,
    ("eth0,ib0", "eth1", "eth1"): ["eth0", "ib0"],
    ("", "eth0", "ib"): ["eth0"],
    ("eth", "", ""): [],
    ("", "", "eth"): ["eth0", "eth1"],
    ("", "", "=eth"): [],
    ("", "", "=eth0,ib0"): ["eth0", "ib0"],
    ("", "", "^docker,eth1"): ["eth0", "ib0"],
    ("", "", "^=eth,docker0"): ["eth0", "eth1", "ib0"],
}


@pytest.mark.parametrize("said", NAMED)
def test_interfaces_by_option_by_horovods_variable_and_by_nccls(said: tuple[str, str, str]) -> None:
    """NCCL's names are prefixes, unless they begin with =; ^ excludes them (NCCL's documentation, environment)."""
    option, horovods, nccls = said
    named = Interfaces.named(option, {"HOROVOD_GLOO_IFACE": horovods, "NCCL_SOCKET_IFNAME": nccls})
    assert [name for name in ALL if named.have(name)] == NAMED[said]
    environ = {"RINGREDUCE_NETWORK_INTERFACE": "ib0", "HOROVOD_GLOO_IFACE": "eth0", "NCCL_SOCKET_IFNAME": "eth1"}
    assert [name for name in ALL if Interfaces.named("", environ).have(name)] == ["ib0"]


WRONG = [
    (["--ssh-args", "it's"], "--ssh-args it's: No closing quotation"),
    (["-p", "0"], "--ssh-port 0: expected 1 to 65535"),
    (["-p", "65536"], "--ssh-port 65536: expected 1 to 65535"),
    (["-x", "=3"], "-x =3: expected NAME or NAME=VALUE"),
    (["-x", "A B=3"], "expected NAME or NAME=VALUE"),
    (["-x", "RINGREDUCE_SIZE=5"], "-x RINGREDUCE_SIZE: ringrun sets this variable"),
    (["--start-timeout", "-1"], "RINGREDUCE_INIT_TIMEOUT=-1: expected a number in 0.1..1e6 (s)"),
    (["--start-timeout", "nan"], "RINGREDUCE_INIT_TIMEOUT=nan: expected a number in 0.1..1e6 (s)"),
    (["--start-timeout", "0"], "RINGREDUCE_INIT_TIMEOUT=0: expected a number in 0.1..1e6 (s)"),
]


def test_interfaces_of_an_option_that_is_repeated() -> None:
    words = ["--network-interface", "eth0,ib0", "--network-interfaces", "eth1", "--network-interface=ib1"]
    read = options.read(["-H", "elsewhere:2", *words, "true"], "ringrun")
    assert orders(read, {}).interfaces == Interfaces("--network-interface", ["eth0", "ib0", "eth1", "ib1"])
    parser = argparse.ArgumentParser()
    host_options.add_host_options(parser, "")
    args = parser.parse_args(["-H", "a,b", *words])
    assert host_options.ringrun_words(args, [Host("a", 1)])[2:] == ["--network-interface=eth0,ib0,eth1,ib1"]


@pytest.mark.parametrize("name", ["network_interface", "network_interfaces"])
def test_interfaces_of_run_by_names_or_by_a_list_as_horovods(name: str) -> None:
    hosts = [Host("a", 1), Host("b", 1)]
    for given in ("eth0,eth1", ["eth0", "eth1"], ("eth0", "eth1")):
        told = call_orders(hosts, sys.executable, b"", {}, {name: given})
        assert told.interfaces == Interfaces("--network-interface", ["eth0", "eth1"])
    with pytest.raises(InvalidArgumentError, match=rf"run\({name}=\['eth0', 1\]\): expected str, or a list of str"):
        call_orders(hosts, sys.executable, b"", {}, {name: ["eth0", 1]})


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_options(words: list[str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        orders(options.read(["-H", "elsewhere:2", *words, "true"], "ringrun"), {})


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    command = ["sh", "-c", 'mkdir "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "$@"', str(tmp_path)]
    done = completed([*command, *RINGRUN, "-H", "elsewhere:2", "true"], env=clean_environment())
    assert done.returncode == 2
    assert done.stderr == "ringrun: the folder in which ringrun runs does not exist any more\n"


def test_the_folder_has_the_name_that_the_users_shell_has_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    read = options.read(["-H", "elsewhere:2", "true"], "ringrun")
    assert orders(read, {"PWD": str(tmp_path / "link")}).folder == str(tmp_path / "link")
    for wrong in ({}, {"PWD": str(tmp_path)}, {"PWD": "link"}):
        assert orders(read, wrong).folder == str(tmp_path / "real")


def test_the_users_words_for_ssh_come_first() -> None:
    line = ["-H", "me@elsewhere:2", "-p", "2222", "-i", "key", "--ssh-args=-J gate -o 'ConnectTimeout 3'", "true"]
    command = orders(options.read(line, "ringrun"), {}).ssh.command("me@elsewhere")
    assert command[:8] == ["ssh", "-J", "gate", "-o", "ConnectTimeout 3", "-p", "2222", "-i"]
    assert command[-2] == "me@elsewhere"
    assert command.index("BatchMode=yes") > 8


SHELLS = ("sh", "bash", "dash", "zsh", "csh", "tcsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_starts_the_agent_from_the_same_words(shell: str) -> None:
    words = ssh.Ssh().command("elsewhere")[-1]
    try:
        done = subprocess.run([shell, "-c", words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"there is no {shell}")
    assert done.stdout.startswith(GREETING), done
    assert done.returncode == 1  # ringrun has gone


def test_every_shell_gives_the_agent_the_variables_that_its_python_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `module load python` on a cluster: without LD_LIBRARY_PATH its Python does not find libpython3.x.so."""
    needed = {"LD_LIBRARY_PATH": "/apps/a b/it's:$HOME/lib", "PYTHONPATH": '/"mine";/x', "PYTHONHOME": "*"}
    given = {**needed, "RINGREDUCE_LOG_LEVEL": "debug", "NCCL_DEBUG": "INFO"}
    found = orders(options.read(["-H", "elsewhere:2", "true"], "ringrun"), given)
    monkeypatch.setattr(ssh, "run_module", lambda name: ["printenv"])
    words = found.ssh.command("elsewhere")[-1]
    for shell in filter(shutil.which, SHELLS):
        done = subprocess.run([shell, "-c", words], env={"PATH": os.environ["PATH"]}, stdout=-1, check=True, text=True)
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert {name: seen.get(name) for name in needed} == needed, shell
        assert not seen.keys() & {"RINGREDUCE_LOG_LEVEL", "NCCL_DEBUG"}


@pytest.mark.parametrize("odd", ["/a!b", "/a\\b", "/a\nb"])
def test_what_shells_read_in_different_ways_is_for_the_ranks_alone(odd: str) -> None:
    found = orders(options.read(["-H", "elsewhere:2", "true"], "ringrun"), {"LD_LIBRARY_PATH": odd})
    assert found.ssh.command("elsewhere") == ssh.Ssh().command("elsewhere")
    assert found.variables == {"LD_LIBRARY_PATH": odd}


# --- What ssh says ----------------------------------------------------------------------------------------------------


@pytest.fixture(name="path")
def fixture_path(tmp_path: Path) -> Path:
    """A folder for a program named ssh, which is the first to be found."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def ringrun_by(path: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs ringrun on a host "elsewhere". A shell script stands for ssh; its $WORDS are what the host would run."""
    environ = clean_environment() | path_with_ssh(path, script)
    return completed([*RINGRUN, "-H", "elsewhere:2", *arguments, "echo", "ran"], env=environ)


HERE = 'exec sh -c "$WORDS"'
NO_LIBRARY = "error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"


def test_one_other_host(path: Path) -> None:
    done = ringrun_by(path, HERE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\nran\n", "")


def test_what_a_login_shell_prints_is_not_the_agents(path: Path) -> None:
    done = ringrun_by(path, f"printf 'Welcome!\\n\\0ringreduce'; echo 'a motto' >&2; {HERE}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\nran\n", "")


READY = {
    "version": _core.__version__, "name": "e", "identity": "i", "seen_from": "", "seen_at": "", "addresses": [],
}  # fmt: skip
PYTHON = re.escape(sys.executable)
SSH_SAYS = "ssh: connect to host elsewhere port 22"
SAID = {
    "unknown key": ("Host key verification failed.", "ssh does not know this host's key yet.*ssh elsewhere true"),
    "another key": ("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "ssh-keygen -R elsewhere"),
    "password": ("me@elsewhere: Permission denied (publickey,password).", "ssh-copy-id elsewhere"),
    "no name": ("ssh: Could not resolve hostname elsewhere: Name or service not known", "no such name"),
    "no sshd": (f"{SSH_SAYS}: Connection refused", "no ssh server listens there"),
    "down": (f"{SSH_SAYS}: No route to host", "it cannot be reached"),
    "options": ("command-line line 0: Bad configuration option: x", "--ssh-args"),
    "no python (sh)": (f"sh: 1: exec: {sys.executable}: not found", f"there is no {PYTHON} there"),
    "no python (bash)": (f"bash: line 1: {sys.executable}: No such file or directory", f"there is no {PYTHON} there"),
    "no python (csh)": (f"{sys.executable}: Command not found.", f"there is no {PYTHON} there"),
    "no libpython": (
        f"{sys.executable}: {NO_LIBRARY}: No such file or directory",
        f"{PYTHON} does not find a shared library there: .*LD_LIBRARY_PATH.*said: .*libpython3.11.so",
    ),
    "a libpython that is closed": (f"{sys.executable}: {NO_LIBRARY}: Permission denied", "LD_LIBRARY_PATH"),
    "anything": ("no such luck", "its agent has ended. ssh said: no such luck"),
}


@pytest.mark.parametrize("case", SAID)
def test_what_ssh_says_has_a_cure(path: Path, case: str) -> None:
    said, words = SAID[case]
    check_refused(path, f"echo {shlex.quote(said)} >&2; exit 255", words)


def check_refused(path: Path, script: str, words: str) -> None:
    done = ringrun_by(path, script)
    assert done.returncode == 255, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("ringrun: host elsewhere: ")
    assert re.search(words, line), line


def test_a_host_without_ringreduce(path: Path) -> None:
    script = f"exec {sys.executable} -S -c 'import sys; sys.path[:] = []; import ringreduce'"
    check_refused(path, script, "ringreduce is not installed there")


def printed(line: str) -> str:
    asks = "where it asks a question, let it ask none without a terminal"
    return f". The login shell of elsewhere has printed: {line} ({asks})"


def test_a_login_that_ends_with_words_on_stdout(path: Path) -> None:
    check_refused(path, "echo 'this account is closed'; exit 1", "ssh said: this account is closed")


def test_an_agent_of_another_version(path: Path) -> None:
    (path / "ready").write_bytes(GREETING + packed(Kind.READY, READY | {"version": "9.9"}))
    check_refused(path, f"cat {path}/ready; exec cat", r"it has ringreduce 9\.9, and this host .*: install one version")


@pytest.mark.parametrize("rest", ["exec cat", "exit 1"])
@pytest.mark.parametrize("number", [PROTOCOL - 1, PROTOCOL + 1])
def test_an_agent_of_another_protocol_is_told_at_once(path: Path, number: int, rest: str) -> None:
    (path / "ready").write_bytes(f"Welcome!\n\0ringreduce agent {number}\n".encode() + packed(Kind.READY, READY))
    done = ringrun_by(path, f"cat {path}/ready; {rest}")
    speaks = f"its ringreduce speaks agent protocol {number}, this one {PROTOCOL}: install one version on all hosts"
    assert (done.returncode, done.stderr) == (255, f"ringrun: host elsewhere: {speaks}\n")


def test_an_agent_that_speaks_otherwise(path: Path) -> None:
    (path / "ready").write_bytes(GREETING + b"hello, world, how are you")
    check_refused(path, f"cat {path}/ready; exec cat", "its agent says what this version does not understand")


def test_a_host_that_never_answers_is_named_in_time(path: Path) -> None:
    done = ringrun_by(path, "echo 'still thinking' >&2; exec sleep 1000", "--start-timeout", "0.5")
    assert done.returncode == 255
    (line,) = done.stderr.splitlines()
    why = "no agent has answered from elsewhere within 0.5 s (--start-timeout or RINGREDUCE_INIT_TIMEOUT allows more)"
    assert line == f"ringrun: {why}. ssh said: still thinking"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo banner >&2; printf 'Two projects\\nWhich one? '", f". ssh said: banner{printed('Which one?')}"),
        ("printf 'Which one? ' >&2", ". ssh said: Which one?"),
    ],
)
def test_what_a_login_shell_asks_is_shown(path: Path, script: str, said: str) -> None:
    done = ringrun_by(path, f"{script}; exec sleep 1000", "--start-timeout", "5")
    assert done.returncode == 255
    (line,) = done.stderr.splitlines()
    assert line.startswith("ringrun: ")
    assert line.endswith(said), line


def test_without_ssh(tmp_path: Path) -> None:
    done = completed([*RINGRUN, "-H", "elsewhere:2", "true"], env=clean_environment() | {"PATH": str(tmp_path)})
    assert done.returncode == 127
    assert done.stderr == "ringrun: cannot run 'ssh': No such file or directory\n"
