"""The parts of the launcher: shares of CPUs, host lists, the command line, the umbrella command."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from deadlines import HANG_S
from processes import completed
from ranks import clean_environment

from ringreduce import cli
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch import binding, ringrun, spawn
from ringreduce.launch.binding import CoreId, core_of, cores_of, cpu_shares, thread_share
from ringreduce.launch.command_line import options
from ringreduce.launch.command_line.host_options import hosts_text
from ringreduce.launch.command_line.hosts import (
    Host,
    is_this_host,
    merged,
    parse_hosts,
    place_on_one_host,
    places_on_hosts,
    read_hostfile,
)
from ringreduce.launch.mpi import loaded, mpirun
from ringreduce.launch.quota import cpu_quota


def flat(cpu: int) -> CoreId:
    return 0, cpu


def threaded(cpu: int) -> CoreId:
    """Two packages of two cores of two threads; the kernel counts threads last: CPU 0 and CPU 4 are one core."""
    return cpu % 4 // 2, cpu % 2


SHARES = [
    (1, range(4), flat, ["0123"]),
    (2, range(4), flat, ["01", "23"]),
    (2, range(5), flat, ["01", "23"]),
    (3, range(4), flat, ["0", "1", "2"]),
    (5, range(3), flat, ["0", "1", "2", "0", "1"]),
    (2, {1, 3, 5, 7}, flat, ["13", "57"]),
    (1, range(8), threaded, ["01234567"]),
    (2, range(8), threaded, ["0415", "2637"]),
    (3, range(8), threaded, ["04", "15", "26"]),
    (4, range(8), threaded, ["04", "15", "26", "37"]),
    (8, range(8), threaded, ["0", "4", "1", "5", "2", "6", "3", "7"]),
    (9, range(8), threaded, ["0", "4", "1", "5", "2", "6", "3", "7", "0"]),
]


@pytest.mark.parametrize(("ranks", "allowed", "core", "shares"), SHARES)
def test_shares(ranks: int, allowed: range | set[int], core: object, shares: list[str]) -> None:
    expected = [frozenset(map(int, share)) for share in shares]
    assert cpu_shares(ranks, allowed, core) == expected  # type: ignore[arg-type]


def test_hardware_threads_of_a_core_count_once() -> None:
    assert [cores_of(cpus, threaded) for cpus in ([0, 4], [0, 1], [0, 1, 4, 5], [7])] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("cores", "ranks", "quota", "threads"),
    [(32, 2, math.inf, 32), (32, 2, 4.0, 2), (32, 2, 5.5, 2), (1, 2, 4.0, 1), (8, 2, 0.5, 1), (4, 2, 64.0, 4)],
)
def test_threads_fit_on_the_cores_and_into_the_quota(cores: int, ranks: int, quota: float, threads: int) -> None:
    assert thread_share(cores, ranks, quota) == threads


GROUPS = {
    "version 2, a pod": (
        "0::/pod/box",
        "cgroup2 none rw",
        "/",
        {"pod/cpu.max": "400000 100000", "cpu.max": "max 100000"},
        4,
    ),
    "version 2, the nearer is smaller": (
        *("0::/pod/box", "cgroup2 none rw", "/"),
        {"pod/cpu.max": "400000 100000", "pod/box/cpu.max": "150000 100000"},
        1.5,
    ),
    "version 2, seen from inside": ("0::/", "cgroup2 none rw", "/", {"cpu.max": "50000 100000"}, 0.5),
    "version 2, no limit": ("0::/a", "cgroup2 none rw", "/", {"a/cpu.max": "max 100000"}, math.inf),
    "version 1, docker": (
        *("4:cpu,cpuacct:/docker/ab", "cgroup cgroup rw,cpu,cpuacct", "/docker/ab"),
        {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"},
        2,
    ),
    "version 1, no limit": (
        *("4:cpu,cpuacct:/", "cgroup cgroup rw,cpu,cpuacct", "/"),
        {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        math.inf,
    ),
    "another controller's": ("4:cpuset:/", "cgroup cgroup rw,cpuset", "/", {"cpu.max": "1 100000"}, math.inf),
    "nothing": ("", "tmpfs tmpfs rw", "/", {}, math.inf),
}


@pytest.mark.parametrize(("groups", "system", "root", "files", "cpus"), GROUPS.values(), ids=list(GROUPS))
def test_cpu_quota(groups: str, system: str, root: str, files: dict[str, str], cpus: float, tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(groups and f"{groups}\n")
    mount = tmp_path / "mounted"
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 {root} {mount} rw,relatime shared:9 - {system}\n")
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(f"{text}\n")
    assert cpu_quota(tmp_path) == cpus


@pytest.mark.parametrize("name", [b"Stra\xdfe", "a\u2028b".encode(), "a\u00a0b".encode(), b"a\rb", b"a\fb"], ids=ascii)
def test_a_mount_point_may_have_any_name(name: bytes, tmp_path: Path) -> None:
    """The kernel writes all but space, tab, newline, # and the backslash as they are."""
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    (folder / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cgroup").write_text("0::/\n")
    mounts = [b"30 23 8:1 / /media/%s rw shared:8 - vfat /dev/sdb1 rw" % name]
    mounts += [b"31 23 0:28 / %s rw shared:9 - cgroup2 none rw" % os.fsencode(folder)]
    (tmp_path / "mountinfo").write_bytes(b"".join(line + b"\n" for line in mounts))
    assert cpu_quota(tmp_path) == 1.5


def test_a_library_may_have_any_name(tmp_path: Path) -> None:
    """What a process has mapped stands in a file whose names are bytes."""
    library = tmp_path / os.fsdecode(b"libmpi-\xff.so")
    library.write_text("a library")
    (tmp_path / "mpi4py.py").write_text(
        "import mmap\n"
        "from types import SimpleNamespace\n"
        "rc, MPI = SimpleNamespace(), SimpleNamespace(Get_library_version=lambda: 'Open MPI v5.0.11')\n"
        f"file = open({os.fsencode(library)!r}, 'rb')\n"
        "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert loaded._loaded(sys.executable, environ) == ("Open MPI 5.0.11", [str(library)])


def test_every_launcher_gives_a_rank_as_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "cpu_quota", lambda: 3.0)
    monkeypatch.setattr(mpirun, "cores", lambda: 8)
    monkeypatch.setattr(spawn, "cores_of", lambda cpus: len(cpus) // 2)
    assert spawn.rank_environment({}, place_on_one_host(0, 2), "", range(8))["OMP_NUM_THREADS"] == "1"
    assert spawn.rank_environment({}, place_on_one_host(0, 1), "", range(8))["OMP_NUM_THREADS"] == "3"
    for ranks, threads in ((1, "3"), (2, "1")):
        read = options.read(["--mpi", "-np", str(ranks), "true"], "ringrun")
        assert mpirun.environment(read, {})["OMP_NUM_THREADS"] == threads


def test_a_cpu_that_the_kernel_does_not_describe_is_a_core_of_its_own() -> None:
    assert core_of(10**6) == (0, 10**6)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a", 1)]),
        ("a:2,b.c.d:4", [Host("a", 2), Host("b.c.d", 4)]),
        ("127.0.0.1:3, localhost:1", [Host("127.0.0.1", 3), Host("localhost", 1)]),
        ("[::1]:2", [Host("::1", 2)]),
        ("me@a:2,me@[2001:db8::1]:3", [Host("me@a", 2), Host("me@2001:db8::1", 3)]),
        ("[fe80::1%eth0]", [Host("fe80::1%eth0", 1)]),
    ],
)
def test_host_list(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts
    assert parse_hosts(hosts_text(hosts)) == hosts  # as bench and doctor hand them on to ringrun


@pytest.mark.parametrize(
    "text", ["", "a:", "a:0", "a:-1", "a:two", "a:1:2", ":2", "a,,b", "-a:2", "@a", "a@b@c", "2001:db8::1", "-oX=y"]
)
def test_bad_host_list(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="host:slots"):
        parse_hosts(text)


def test_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the lab\nlocalhost slots=2\n\n127.0.0.1   slots = 3  # again\na:4\nb\nc slots=1 max_slots=8\n")
    assert [host.slots for host in read_hostfile(str(path))] == [2, 3, 4, 1, 1]
    path.write_text("[2001:db8::1] slots=2\nme@[::1]:3\n")
    assert read_hostfile(str(path)) == [Host("2001:db8::1", 2), Host("me@::1", 3)]
    path.write_bytes("# die Höhle, of an editor that writes Latin-1\n[fe80::1%br-lan.7]:2\n".encode("latin-1"))
    assert read_hostfile(str(path)) == [Host("fe80::1%br-lan.7", 2)]
    path.write_text("2001:db8::1\n")
    with pytest.raises(InvalidArgumentError, match="slots=N"):
        read_hostfile(str(path))
    path.write_text("localhost\nlocalhost slots=many\n")
    with pytest.raises(InvalidArgumentError, match=r"hosts:2: .*slots=N"):
        read_hostfile(str(path))
    path.write_text("# nobody\n")
    with pytest.raises(InvalidArgumentError, match="no host"):
        read_hostfile(str(path))
    with pytest.raises(InvalidArgumentError, match="No such file"):
        read_hostfile(str(tmp_path / "missing"))


def test_which_hosts_are_this_one() -> None:
    assert all(map(is_this_host, ("localhost", "127.0.0.1", "127.3.2.1", "::1", socket.gethostname())))
    assert not any(map(is_this_host, ("remote", "10.0.0.1", "localhost.example.com")))


OWN = ["10.9.0.1", "10.9.0.3", "fd00:9::1", "FD00:9::1", "127.3.2.1"]
OTHERS = ["10.9.0.2", "192.0.2.1", "fd00:9::2", "2001:db8::1"]
ANY_ADDRESS_IS_BOUND = f"""
import pathlib, subprocess
from ringreduce.launch.command_line.hosts import is_this_host

for family in ("ipv4", "ipv6"):
    try:
        pathlib.Path(f"/proc/sys/net/{{family}}/ip_nonlocal_bind").write_text("1")
    except OSError as error:
        print(f"no sysctl: {{error}}")
        raise SystemExit
# The second address of a network has the first as its preferred source.
addresses = ("10.9.0.1/24 dev lo", "10.9.0.3/24 dev lo", "fd00:9::1/64 dev lo nodad")
for words in ("link set lo up", *("addr add " + address for address in addresses)):
    subprocess.run(["ip", *words.split()], check=True)
for words in ("route add 192.0.2.0/24 dev lo", "-6 route add 2001:db8::/32 dev lo"):  # there is a way to strangers
    subprocess.run(["ip", *words.split()], check=True)
print(*map(is_this_host, {OWN + OTHERS}))
"""


def test_addresses_of_others_that_may_be_bound_are_not_of_this_host() -> None:
    """As where keepalived or HAProxy run: net.ipv4.ip_nonlocal_bind is 1. In a network namespace of its own."""
    isolated = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("unshare") or completed([*isolated, "ip", "link"]).returncode:
        pytest.skip("there can be no network namespace with `ip` in it here")
    done = completed([*isolated, sys.executable, "-c", ANY_ADDRESS_IS_BOUND])
    if done.stdout.startswith("no sysctl"):
        pytest.skip(done.stdout.strip())
    expected = [True] * len(OWN) + [False] * len(OTHERS)
    assert done.stdout.split() == list(map(str, expected)), done.stderr


def test_a_host_that_is_named_twice_is_one() -> None:
    named = [Host("a", 1), Host("127.0.0.1", 2), Host("b", 1), Host("a", 3), Host(socket.gethostname(), 1)]
    assert merged(named) == [Host("a", 4), Host("localhost", 3), Host("b", 1)]


def test_places_on_hosts() -> None:
    first, second, third = places_on_hosts([2, 1, 2])
    assert first == [(0, 5, 0, 2, 0, 3), (1, 5, 1, 2, 0, 2)]
    assert second == [(2, 5, 0, 1, 1, 3)]
    assert third == [(3, 5, 0, 2, 2, 3), (4, 5, 1, 2, 1, 2)]


WRONG = [
    (["-np", "2", "-H", "remote:2", "--transport", "shm", "true"], "--transport shm: ranks on several hosts"),
    (["-np", "2", "-H", "remote:2", "-x", "NO_SUCH_VARIABLE", "true"], "-x NO_SUCH_VARIABLE: this variable is not set"),
    (["-np", "2", "-x", "RINGREDUCE_SIZE=5", "true"], "-x RINGREDUCE_SIZE: ringrun sets this variable"),
    (["-np", "3", "-H", "remote:1,localhost:1", "true"], "the hosts have 2 slots"),
    (["-np", "2", "-H", "-oProxyCommand=true:2", "true"], "expected one argument"),
    (["-np", "2", "-H=-oProxyCommand=true:2", "true"], "is not of the form host:slots"),
    (["-np", "2", "--mpi-args=-v", "true"], "give --transport mpi too"),
    (["-np", "2", "--mpi", "--mpi-args=it's", "true"], "ringrun: --mpi-args it's: No closing quotation"),
    (["-np", "3", "--transport", "mpi", "-H", "remote:2", "true"], "the hosts have 2 slots"),
    (["-np", "2", "--transport", "pigeon", "true"], "invalid choice: 'pigeon'"),
    (["-np", "3", "-H", "localhost:2", "true"], "the hosts have 2 slots"),
    (["-np", "0", "true"], "-np 0"),
    (["-np", "two", "true"], "invalid int value: 'two'"),
    (["true"], "give -np N"),
    (["-np", "2"], "no program"),
    (["-np", "2", "--"], "no program"),
    (["-np", "2", "-m"], "no program"),
    (["python", "-np", "2", "x.py"], "options stand before the program: ringrun -np N python ..."),
    (["-np", "2", "--mpi", "--output-filename", "x", "true"], '"--output dir=DIR" (Open MPI 5)'),
    (["-np", "2", "--grace", "-1", "true"], "--grace -1"),
    (["-np", "2", "--grace", "nan", "true"], "--grace nan"),
    (["-np", "2", "-H", "localhost", "--hostfile", "x", "true"], "--hostfile"),
    (["-np", "2", "--no-such-option", "true"], "--no-such-option"),
]


@pytest.mark.parametrize(("argv", "words"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_a_wrong_command_line_is_status_2_and_says_why(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = ringrun.main(argv)
    except SystemExit as stopped:  # argparse
        status = int(str(stopped.code))
    assert status == 2
    out, err = capsys.readouterr()
    assert words in err
    assert out == ""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return completed(command, env=clean_environment())


def test_what_cannot_be_run() -> None:
    base = (sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "3")
    missing = run(*base, "/no/such/program")
    assert (missing.returncode, missing.stdout) == (127, "")
    assert missing.stderr == "ringrun: cannot run '/no/such/program': No such file or directory\n"
    folder = run(*base, "/")
    assert folder.returncode == 126
    assert "Permission denied" in folder.stderr


def test_scripts_and_modules_run_under_ringruns_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    show = "import os, sys; print(os.environ['RINGREDUCE_RANK'], sys.executable, *sys.argv[1:])"
    (tmp_path / "train.py").write_text(show)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(show)
    ringrun = (sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2")
    for program in (["train.py"], ["./train.py"], ["--", "train.py"], ["-m", "package.train"]):
        done = run(*ringrun, *program, "--epochs", "3", "-np", "4")
        assert sorted(done.stdout.splitlines()) == [f"{rank} {sys.executable} --epochs 3 -np 4" for rank in (0, 1)]
        assert done.returncode == 0, done.stderr
    (tmp_path / "train.py").write_text("#!/bin/sh\necho by itself")
    (tmp_path / "train.py").chmod(0o755)
    assert run(*ringrun, "./train.py").stdout == "by itself\n" * 2
    missing = run(*ringrun, "missing.py")
    assert (missing.returncode, missing.stderr) == (
        127,
        "ringrun: cannot run 'missing.py': No such file or directory\n",
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert ringrun.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ringrun 0.")


def test_slots_are_the_default_number_of_ranks() -> None:
    done = run(sys.executable, "-m", "ringreduce", "run", "-H", "localhost:2,127.0.0.1:1", "echo", "-n", "x")
    assert (done.returncode, done.stdout.split()) == (0, ["x", "x", "x"])


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        ringrun.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "-np",
        "-H",
        "--hostfile",
        "--transport",
        "--bind",
        "--grace",
        "--tag-output",
        "--mpi-args",
        "--output-filename",
        "--timeline",
        "--fusion-threshold-mb",
        "-m",
    ):
        assert option in text


def test_check_build_is_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = pytest.importorskip("ringreduce.doctor")
    monkeypatch.setattr(doctor, "main", lambda argv: 42 + len(argv))
    assert ringrun.main(["--check-build"]) == 42
    assert cli.main(["doctor", "--json"]) == 43


def test_umbrella_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "bench" in capsys.readouterr().out
    assert cli.main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert cli.main(["dance"]) == 2
    assert "no command 'dance'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main(["timeline"])
    assert "usage: ringreduce timeline" in capsys.readouterr().err
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ringreduce 0.")


@pytest.mark.parametrize("words", ["--version", "top --once", "doctor"])
def test_a_command_whose_reader_has_gone_ends_without_a_word(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ringreduce", *words.split()]
    with open(writer, "w") as gone:
        done = subprocess.run(
            command, stdout=gone, stderr=subprocess.PIPE, env=clean_environment(), timeout=HANG_S, check=False
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")
