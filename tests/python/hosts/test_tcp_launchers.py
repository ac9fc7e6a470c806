"""What each launcher needs for TCP between hosts: each row of docs/user/hosts.md, and what is said of mistakes.

test_slurm.py has srun's rows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mpis
import pytest
import tcp_jobs
from deadlines import HANG_S, SOON_S
from ports import free_port
from ranks import clean_environment, run_ranks
from tcp_jobs import secret_file

import ringreduce
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job.environment import Placement
from ringreduce.job.places import TcpWanted
from ringreduce.job.tcp import own_address, slurm_step
from ringreduce.job.tcp.job import meet_ranks, source
from ringreduce.job.tcp.own_address import reachable_ip
from ringreduce.job.tcp.rendezvous import Met
from ringreduce.lab.lab import Lab
from ringreduce.lab.mpi import Mpi, find
from ringreduce.lab.requirements import missing

needs_lab = pytest.mark.skipif(missing() is not None, reason=str(missing()))

REPORT = """
import json, os, socket, struct, time
from pathlib import Path
import numpy as np
import ringreduce
from ringreduce import state

def listens():
    '''The addresses at which this process listens on IPv4; on IPv6 it does not.'''
    sockets = {os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists() or fd.is_symlink()}
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    rows = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return sorted(socket.inet_ntoa(struct.pack("=I", int(row[1].partition(":")[0], 16))) for row in rows)

def attempt():
    '''What this rank says of two jobs in a row.'''
    for setting in os.environ.get("RR_HOST_" + os.uname().nodename.upper(), "").split():
        name, _, value = setting.partition("=")
        os.environ[name] = value
    lines = set()
    try:
        for _ in range(2):
            with ringreduce.init() as world:
                x = np.arange(5000) % 97 + world.rank
                right = (np.arange(5000) % 97) * world.size + sum(range(world.size))
                sums = "sums" if (ringreduce.allreduce(x, op=ringreduce.Sum) == right).all() else "wrong"
                way = "MPI" if state.current.communicator is not None else "TCP"
                way = way if ringreduce.stats()["bytes_on_wire"] else "memory"
                place = [world.local_rank, world.local_size, world.cross_rank, world.cross_size]
                at = " at " + ",".join(listens()) if "MPI4PY_MPIABI" not in os.environ and way == "TCP" else ""
                lines.add(f"rank {world.rank}/{world.size} {sums} {place} by {way}{at}")
    except ringreduce.Error as error:
        lines.add(f"refused: {type(error).__name__}: {error}")
    return lines

def await_others(number):
    '''Returns once all ranks have come to the end of the attempt.'''
    folder = Path(os.environ["RR_FOLDER"], f"ended {number}")
    folder.mkdir(exist_ok=True)
    (folder / os.environ["RANK"]).touch()
    deadline = time.monotonic() + float(os.environ["RR_DEADLINE"])
    while len(list(folder.iterdir())) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < deadline:
        time.sleep(0.01)

attempts = json.loads(os.environ.get("RR_ATTEMPTS", "[]"))
for number, env in enumerate(attempts):
    before = dict(os.environ)
    os.environ.update(env)
    os.write(1, "".join(f"{number}: {line}\\n" for line in attempt()).encode())
    os.environ.clear()
    os.environ.update(before)
    await_others(number)
if not attempts:
    os.write(1, "".join(f"{line}\\n" for line in attempt()).encode())  # in one write: ranks share a pipe
"""


@pytest.fixture(scope="module", name="lab")
def two_hosts() -> Iterator[Lab]:
    with Lab(hosts=2, rate="1gbit") as lab:
        yield lab


@pytest.fixture(name="secret")
def on_all_hosts(lab: Lab) -> str:
    return str(secret_file(lab.folder))


def program(folder: Path) -> str:
    path = folder / "report.py"
    path.write_text(REPORT)
    return str(path)


def said(output: str) -> list[str]:
    """The ranks' lines, in order."""
    return sorted(line for line in output.splitlines() if re.match(r"(\d+: )?(rank|refused)", line))


def wanted(way: str, at: Sequence[str] = ("", "")) -> list[str]:
    """What two ranks on each of two hosts say. at: where those of each host listen."""
    return [
        f"rank {rank}/4 sums {[rank % 2, 2, rank // 2, 2]} by {way}" + (f" at {at[rank // 2]}" if at[0] else "")
        for rank in range(4)
    ]


# --- mpirun -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=mpis.SAMPLED, name="mpi")
def each_mpi(request: pytest.FixtureRequest) -> Mpi:
    return installed(request.param)


def installed(name: str) -> Mpi:
    pytest.importorskip("mpi4py")
    library, major = name.split("-")
    found = find(library, int(major))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def mpirun(lab: Lab, mpi: Mpi, env: Mapping[str, str]) -> list[str]:
    env = {"RINGREDUCE_INIT_TIMEOUT": "60", **env}
    done = lab.mpirun(mpi, 2, [sys.executable, program(lab.folder)], env=env, timeout_s=HANG_S)
    assert (done.status, len(said(done.output))) == (0, 4), done.output
    return [line.partition(" at ")[0] if line.startswith("rank") else line for line in said(done.output)]


@needs_lab
def test_mpirun_hands_over_address_and_secret(lab: Lab, mpi: Mpi) -> None:
    assert mpirun(lab, mpi, {"RINGREDUCE_TRANSPORT": "shm+tcp"}) == wanted("TCP")


@needs_lab
@pytest.mark.parametrize("name", ["openmpi-5", "mpich-5"])
def test_mpi_that_is_initialised_for_the_address_alone_is_finalised(lab: Lab, name: str) -> None:
    mpi = installed(name)
    path = lab.folder / "uninitialised.py"
    path.write_text("import mpi4py\nmpi4py.rc.initialize = False\n" + REPORT)
    done = lab.mpirun(mpi, 2, [sys.executable, path], env={"RINGREDUCE_TRANSPORT": "shm+tcp"}, timeout_s=HANG_S)
    assert (done.status, len(said(done.output))) == (0, 4), done.output


@needs_lab
def test_mpirun_by_itself_means_mpi(lab: Lab) -> None:
    assert mpirun(lab, installed("mpich-5"), {}) == wanted("MPI")


@needs_lab
def test_mpirun_with_each_rank_a_host(lab: Lab) -> None:
    lines = mpirun(lab, installed("mpich-5"), {"RINGREDUCE_TRANSPORT": "tcp"})
    assert lines == [f"rank {rank}/4 sums {[0, 1, rank, 4]} by TCP" for rank in range(4)]


@needs_lab
@pytest.mark.parametrize("address", [":29471", "a:29472", "10.77.0.1:29473"])
def test_mpirun_with_an_address_needs_no_secret_file(lab: Lab, address: str) -> None:
    assert mpirun(lab, installed("mpich-5"), {"RINGREDUCE_ADDRESS": address}) == wanted("TCP")


@needs_lab
def test_mpirun_with_address_and_secret_file_needs_no_mpi(lab: Lab, secret: str) -> None:
    path = lab.folder / "without_mpi.py"
    path.write_text("import sys\nsys.modules['mpi4py'] = None\n" + REPORT)
    env = {"RINGREDUCE_ADDRESS": "a:29476", "RINGREDUCE_SECRET_FILE": secret}
    done = lab.mpirun(installed("mpich-5"), 2, [sys.executable, path], env=env, timeout_s=HANG_S)
    assert said(done.output.replace(" at 10.77.0.1", "").replace(" at 10.77.0.2", "")) == wanted("TCP"), done.output
    env = {"RINGREDUCE_TRANSPORT": "shm+tcp"}
    done = lab.mpirun(installed("mpich-5"), 2, [sys.executable, path], env=env, timeout_s=HANG_S)
    words = "refused: UnavailableError: MPI: mpi4py is not installed.*RINGREDUCE_ADDRESS and RINGREDUCE_SECRET_FILE"
    assert len(said(done.output)) == 4, done.output
    assert all(re.match(words, line) for line in said(done.output)), done.output


@needs_lab
def test_mpirun_with_a_secret_file_and_no_address(lab: Lab, secret: str) -> None:
    env = {"RINGREDUCE_TRANSPORT": "shm+tcp", "RINGREDUCE_SECRET_FILE": secret}
    assert mpirun(lab, installed("mpich-5"), env) == wanted("TCP")


@needs_lab
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RR_HOST_A": "RINGREDUCE_TRANSPORT=shm+tcp"}, r"MismatchError: .*RINGREDUCE_TRANSPORT.* on [ab].*mpirun -x"),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RR_HOST_B": "RINGREDUCE_SECRET_FILE=/nowhere"},
            r"InvalidArgumentError: .*rank 2 on b: the job's secret file cannot be read.*/nowhere",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RR_HOST_A": "RINGREDUCE_SECRET_FILE=/nowhere"},
            r"InvalidArgumentError: .*the job's secret file cannot be read.*/nowhere",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RR_HOST_A": f"RINGREDUCE_SECRET_FILE=/{'long/' * 300}"},
            r"InvalidArgumentError: .*the job's secret file cannot be read.*",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RINGREDUCE_ADDRESS": "b:29474"},
            r"InvalidArgumentError: .*cannot listen at b:29474.*one of rank 0's own host",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RINGREDUCE_ADDRESS": "0.0.0.0:29474"},
            r"InvalidArgumentError: .*0.0.0.0:29474 is not the address of one interface",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RINGREDUCE_ADDRESS": "a:22"},  # the ssh daemon of the lab
            r"MismatchError: .*another process listens at a:22 already",
        ),
        (
            {"RINGREDUCE_TRANSPORT": "shm+tcp", "RINGREDUCE_ADDRESS": "a"},
            r"InvalidArgumentError: .*'a' is not of the form",
        ),
    ],
    ids=["transport", "secret-on-b", "secret-on-a", "long-secret", "address", "any-address", "port", "form"],
)
def test_what_is_wrong_is_said_on_every_rank_of_mpirun(lab: Lab, env: dict[str, str], words: str) -> None:
    lines = mpirun(lab, installed("mpich-5"), env)
    assert all(re.match(f"refused: {words}", line) for line in lines), lines


@needs_lab
def test_a_secret_file_on_one_host_of_mpirun(lab: Lab, secret: str) -> None:
    env = {"RINGREDUCE_TRANSPORT": "shm+tcp", "RR_HOST_A": f"RINGREDUCE_SECRET_FILE={secret}"}
    lines = mpirun(lab, installed("mpich-5"), env | {"RINGREDUCE_INIT_TIMEOUT": "5"})
    told = [line for line in lines if "rank 0 has a RINGREDUCE_SECRET_FILE and this rank has none" in line]
    assert len(told) == 2, lines
    assert sum("ranks 2, 3 did not come" in line for line in lines) == 2, lines


COMMUNICATOR = """
import os
from mpi4py import MPI
import numpy as np
import ringreduce
half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
with ringreduce.init(comm=half) as world:
    total = ringreduce.allreduce(np.ones(5000), op=ringreduce.Sum)[0]
    crossed = ringreduce.stats()["bytes_on_wire"] > 0
    from ringreduce import state
    tcp = state.current.communicator is None
os.write(1, f"rank {world.rank}/{world.size} {total} {crossed} {tcp}\\n".encode())
"""


@needs_lab
def test_communicators_of_mpi_may_be_connected_by_tcp(lab: Lab) -> None:
    path = lab.folder / "halves.py"
    path.write_text(COMMUNICATOR)
    env = {"RINGREDUCE_TRANSPORT": "shm+tcp"}
    done = lab.mpirun(installed("mpich-5"), 2, [sys.executable, path], env=env, timeout_s=HANG_S)
    assert said(done.output) == [f"rank {rank}/2 2.0 True True" for rank in (0, 0, 1, 1)], done.output


# --- torchrun ---------------------------------------------------------------------------------------------------------


def torchrun(
    lab: Lab,
    env: Mapping[str, str],
    *rendezvous: str,
    options: Sequence[str] = (),
    path: str | None = None,
    attempts: int = 1,
) -> list[str]:
    """What four ranks on hosts a and b say, of so many attempts each."""
    pytest.importorskip("torch")
    environ = {"RINGREDUCE_INIT_TIMEOUT": "60", **env}
    what = [path or program(lab.folder)]
    _, outputs = tcp_jobs.torchrun(lab, what, environ, rendezvous=rendezvous, options=options)
    lines = said("".join(outputs))
    assert len(lines) == 4 * attempts, outputs
    return lines


@needs_lab
def test_torchrun_on_two_hosts(lab: Lab, secret: str) -> None:
    """One start of torchrun, whose ranks try one after the other what would be jobs of their own: a start is 10 s."""
    other = secret_file(lab.folder, "other", b"f" * 32)
    with_secret = {"RINGREDUCE_SECRET_FILE": secret}
    secret_on_a = {"RR_HOST_A": f"RINGREDUCE_SECRET_FILE={secret}", "RINGREDUCE_INIT_TIMEOUT": "8"}
    unreachable = {"RINGREDUCE_ADDRESS": "10.99.0.1:29484", "RINGREDUCE_INIT_TIMEOUT": "5"}
    attempts = {
        "the store says where rank 0 is": with_secret,
        "the address has a port": with_secret | {"RINGREDUCE_ADDRESS": ":29481"},
        "the address has a host": with_secret | {"RINGREDUCE_ADDRESS": "a:29482"},
        "no secret": {},
        "an address and no secret": {"RINGREDUCE_ADDRESS": "a:29483"},
        "two secrets": secret_on_a | {"RR_HOST_B": f"RINGREDUCE_SECRET_FILE={other}"},
        "no file on b": secret_on_a | {"RR_HOST_B": "RINGREDUCE_SECRET_FILE=/nowhere"},
        "b cannot reach rank 0": with_secret | unreachable,
        "the port is taken": with_secret | {"RINGREDUCE_ADDRESS": ":22"},
        "at last": with_secret,
    }
    env = {"RR_ATTEMPTS": json.dumps([*attempts.values()]), "RR_FOLDER": str(lab.folder), "RR_DEADLINE": str(HANG_S)}
    lab.run("a", ["ip", "addr", "add", "10.99.0.1/32", "dev", "lo"])
    try:
        lines = torchrun(lab, env, attempts=len(attempts))
    finally:
        lab.run("a", ["ip", "addr", "del", "10.99.0.1/32", "dev", "lo"])
    says = {
        name: sorted(line.partition(": ")[2] for line in lines if line.startswith(f"{number}: "))
        for number, name in enumerate(attempts)
    }

    def all_say(name: str, words: str) -> None:
        assert [re.match(f"refused: {words}", line) is not None for line in says[name]] == [True] * 4, says[name]

    def count(name: str, words: str) -> int:
        return sum(re.search(words, line) is not None for line in says[name])

    for name in ("the store says where rank 0 is", "the address has a port", "the address has a host", "at last"):
        assert says[name] == wanted("TCP", ("10.77.0.1", "10.77.0.2")), name
    all_say("no secret", "UnavailableError: torchrun started this job on several hosts.*set RINGREDUCE_SECRET_FILE")
    all_say("an address and no secret", "InvalidArgumentError: .*no secret_file.*Set RINGREDUCE_SECRET_FILE")
    assert count("two secrets", "does not know this job's secret") == 2, says["two secrets"]
    assert count("two secrets", "ranks 2, 3 did not come to 10.77.0.1:") == 2, says["two secrets"]
    unread = "InvalidArgumentError: the job's secret file cannot be read"
    assert count("no file on b", unread) == 2, says["no file on b"]
    assert count("no file on b", "ranks 2, 3 did not come to 10.77.0.1:") == 2, says["no file on b"]
    far = "b cannot reach rank 0"
    assert count(far, "ranks 2, 3 did not come to 10.99.0.1:29484") == 2, says[far]
    unreached = "no connection to rank 0 at 10.99.0.1:29484 .*Network is unreachable.* this host, b, reach that port"
    assert count(far, unreached) == 2, says[far]
    all_say("the port is taken", "MismatchError: .*another process listens at 10.77.0.1:22 already")
    assert count("the port is taken", "told by rank 0") == 3, says["the port is taken"]


FAILS_ONCE = """
import os
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    import ringreduce
    ringreduce.init()
    if ringreduce.rank() == 3:
        raise SystemExit("once")
    try:
        while True:
            ringreduce.barrier()
    finally:
        ringreduce.shutdown()
"""


@needs_lab
def test_torchrun_starts_its_ranks_again(lab: Lab, secret: str) -> None:
    """The store still has the address of the first attempt."""
    pytest.importorskip("torch")
    path = lab.folder / "fails_once.py"
    path.write_text(FAILS_ONCE + REPORT)
    lines = torchrun(lab, {"RINGREDUCE_SECRET_FILE": secret}, options=("--max-restarts", "1"), path=str(path))
    assert lines == wanted("TCP", ("10.77.0.1", "10.77.0.2"))


@needs_lab
def test_torchrun_with_a_rendezvous_of_its_own(lab: Lab, secret: str) -> None:
    """Which of the hosts has rank 0 is torchrun's choice."""
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "b:29400", "--rdzv-id", "7"]
    lines = torchrun(lab, {"RINGREDUCE_SECRET_FILE": secret}, *words)
    ways = [wanted("TCP", at) for at in (("10.77.0.1", "10.77.0.2"), ("10.77.0.2", "10.77.0.1"))]
    assert lines in ways


FAILS_ON_ONE_HOST = """
import os, time
from pathlib import Path
failed = Path(os.environ["RR_FAILED"])
if not failed.exists():
    import ringreduce
    ringreduce.init()
    ringreduce.barrier()
    if ringreduce.rank() == 3:
        failed.touch()
        raise SystemExit("once")
    while True:  # until the agent ends this rank, which fails on the other host only
        time.sleep(0.1)
print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@needs_lab
@pytest.mark.long  # likewise: test_torchrun_starts_its_ranks_again
def test_torchrun_starts_ranks_again_that_one_agent_counts(lab: Lab, secret: str) -> None:
    """An agent whose ranks have not failed starts them again without counting it."""
    pytest.importorskip("torch")
    path = lab.folder / "fails_on_one_host.py"
    path.write_text(FAILS_ON_ONE_HOST + REPORT)
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:29400", "--rdzv-id", "9"]
    env = {"RINGREDUCE_SECRET_FILE": secret, "RR_FAILED": str(lab.folder / "failed")}
    env["PYTHONUNBUFFERED"] = "1"  # an agent may end ranks that have printed what they print
    _, outputs = tcp_jobs.torchrun(lab, [path], env, rendezvous=words, options=("--max-restarts", "1"))
    counts = [{*re.findall(r"restarts (\d)", output)} for output in outputs]
    assert sorted(counts, key=str) == [{"0"}, {"1"}], outputs
    ways = [wanted("TCP", at) for at in (("10.77.0.1", "10.77.0.2"), ("10.77.0.2", "10.77.0.1"))]
    assert {*said("".join(outputs))} in [{*way} for way in ways], outputs


@needs_lab
def test_torchrun_without_a_store_that_ranks_may_ask(lab: Lab, secret: str) -> None:
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "a:29400", "--rdzv-id", "8"]
    env = {"RINGREDUCE_SECRET_FILE": secret, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    lines = torchrun(lab, env, *words)
    assert all(re.match("refused: UnavailableError: .*set RINGREDUCE_ADDRESS=host:port", line) for line in lines), lines


# --- one host ---------------------------------------------------------------------------------------------------------


def ringrun(tmp_path: Path, *options: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "2", *options, program(tmp_path)]
    environ = {**clean_environment(), **(env or {})}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False)


TWO_HOSTS = [f"rank {rank}/2 sums {[0, 1, rank, 2]} by TCP at 127.0.0.1" for rank in range(2)]


def test_ringrun_connects_the_ranks_of_this_host(tmp_path: Path) -> None:
    done = ringrun(tmp_path, "--transport", "tcp")
    assert (done.returncode, said(done.stdout)) == (0, TWO_HOSTS), done.stderr


def test_shared_memory_is_used_within_a_host(tmp_path: Path) -> None:
    for env in ({"RINGREDUCE_TRANSPORT": "shm+tcp"}, {"RINGREDUCE_ADDRESS": f":{free_port()}"}):
        done = ringrun(tmp_path, env=env)
        assert said(done.stdout) == [f"rank {rank}/2 sums {[rank, 2, 0, 1]} by memory" for rank in range(2)], done


def shown() -> list[bool]:
    """Whether the secret is in this process's arguments or variables."""
    from ringreduce.job.tcp import job as tcp_job

    secrets = []
    meeting = tcp_job.TcpMeeting
    tcp_job.TcpMeeting = lambda *args: secrets.append(args[2]) or meeting(*args)  # type: ignore[assignment, misc, func-returns-value]
    with ringreduce.init():
        pass
    (secret,) = secrets
    everywhere = Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/environ").read_bytes()
    everywhere += repr(dict(os.environ)).encode()
    return [len(secret) == 32, secret in everywhere, secret.hex().encode() in everywhere]


def test_the_secret_of_one_host_is_in_no_argument_and_no_variable() -> None:
    assert run_ranks(shown, 2, env={"RINGREDUCE_TRANSPORT": "tcp"}) == [[True, False, False]] * 2


def test_torchrun_on_one_host_connects_by_tcp_when_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    environ = clean_environment() | {"RINGREDUCE_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"}
    command += [str(free_port()), program(tmp_path)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert said(done.stdout) == TWO_HOSTS, done


def test_mpirun_on_one_host_connects_by_tcp_when_told(tmp_path: Path) -> None:
    mpi = mpis.get("mpich-5")
    done = mpi.attempt(2, sys.executable, program(tmp_path), extra={"RINGREDUCE_TRANSPORT": "tcp"})
    assert [line.partition(" at ")[0] for line in said(done.stdout)] == [line[:-13] for line in TWO_HOSTS], done.stdout


BY_ARGUMENTS = """
import sys
import numpy as np
import ringreduce
rank, address, secret = sys.argv[1:]
with ringreduce.init(rank=int(rank), size=2, address=address, secret_file=secret) as world:
    total = ringreduce.allreduce(np.full(9, world.rank + 1), op=ringreduce.Sum)
    print(world.rank, world.cross_size, total[0])
"""


@needs_lab
def test_a_program_that_says_address_and_secret_itself(lab: Lab, secret: str) -> None:
    commands = [[sys.executable, "-c", BY_ARGUMENTS, str(rank), "10.77.0.1:29475", secret] for rank in range(2)]
    with contextlib.ExitStack() as stack:
        ranks = [stack.enter_context(lab.start(host, command)) for host, command in zip("ab", commands, strict=True)]
        for process in ranks:
            stack.callback(process.kill)
        assert [process.communicate(timeout=HANG_S)[0] for process in ranks] == ["0 2 3\n", "1 2 3\n"]


BY_VARIABLES = """
import numpy as np
import ringreduce
with ringreduce.init() as world:
    total = ringreduce.allreduce(np.full(9, world.rank + 1), op=ringreduce.Sum)
    print(world.rank, world.cross_size, total[0])
"""


@needs_lab
def test_rank_and_world_size_alone_with_an_address(lab: Lab, secret: str) -> None:
    """As in the pods of a PyTorchJob."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, host in enumerate("ab"):
            places = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "23456"}
            tcp = {"RINGREDUCE_ADDRESS": "a:29477", "RINGREDUCE_SECRET_FILE": secret}
            words = ["env", *(f"{name}={value}" for name, value in {**places, **tcp}.items())]
            ranks.append(stack.enter_context(lab.start(host, [*words, sys.executable, "-c", BY_VARIABLES])))
            stack.callback(ranks[-1].kill)
        assert [process.communicate(timeout=HANG_S)[0] for process in ranks] == ["0 2 3\n", "1 2 3\n"]


# --- how an address is chosen -----------------------------------------------------------------------------------------


def test_loopback_addresses_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian has them in /etc/hosts for a host's own name."""
    found = {"here": "127.0.1.1", "other": "192.0.2.7", "fe": "fe80::1%eth0"}
    monkeypatch.setattr(own_address, "_source", {"192.0.2.7": "127.0.0.1"}.get)
    monkeypatch.setattr(own_address.os, "uname", lambda: os.uname_result(("Linux", "here", "", "", "")))
    monkeypatch.setattr(own_address.socket, "getaddrinfo", lambda name, port, type: [(0, 0, 0, "", (found[name], 0))])
    with pytest.raises(
        InvalidArgumentError,
        match=r"other leads to 192.0.2.7, fe leads to fe80.*the way to other leads to 127.0.0.1, here leads",
    ):
        reachable_ip(["other", "fe"], "rank 0")


DEBIAN = """
set -e
mount --bind $1 /etc/hosts
ip route add default via 10.77.0.2
trap 'ip route del default' EXIT
$2 -c 'from ringreduce.job.tcp.own_address import reachable_ip; print(reachable_ip(["a"], "me"))'
"""


@needs_lab
def test_the_default_route_says_which_address_is_used(lab: Lab) -> None:
    hosts = lab.folder / "debians-hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 a\n")
    done = lab.run("a", ["unshare", "-m", "sh", "-c", DEBIAN, "sh", str(hosts), sys.executable])
    assert (done.status, done.output) == (0, "10.77.0.1\n")


@needs_lab
def test_the_way_to_another_host_says_which_address_is_used(lab: Lab) -> None:
    """Debian's own name leads to 127.0.1.1, and there is no default route."""
    hosts = lab.folder / "debians-hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.1.1 b\n10.77.0.1 a\n")
    code = 'from ringreduce.job.tcp.own_address import reachable_ip; print(reachable_ip(["a"], "me"))'
    script = 'mount --bind $1 /etc/hosts; $2 -c "$3"'
    done = lab.run("b", ["unshare", "-m", "sh", "-ec", script, "sh", str(hosts), sys.executable, code])
    assert (done.status, done.output) == (0, "10.77.0.2\n")


@needs_lab
def test_the_hosts_own_name_says_which_address_is_used(lab: Lab) -> None:
    code = 'from ringreduce.job.tcp.own_address import reachable_ip; print(reachable_ip(["nobody"], "me"))'
    done = lab.run("b", [sys.executable, "-c", code])
    assert (done.status, done.output) == (0, "10.77.0.2\n")


@needs_lab
def test_the_users_interfaces_say_which_address_is_used(lab: Lab) -> None:
    code = 'from ringreduce.job.tcp.own_address import reachable_ip; print(reachable_ip(["a"], "me"))'
    lab.run("b", ["sh", "-ec", "ip link add net1 type bridge; ip addr add 10.66.0.2/24 dev net1; ip link set net1 up"])
    try:
        for env, address in (
            ({"NCCL_SOCKET_IFNAME": "eth"}, "10.77.0.2"),
            ({"RINGREDUCE_NETWORK_INTERFACE": "net1"}, "10.66.0.2"),  # nothing leads there
            ({"NCCL_SOCKET_IFNAME": "^eth"}, "10.66.0.2"),
        ):
            done = lab.run("b", [sys.executable, "-c", code], env=env)
            assert (done.status, done.output) == (0, f"{address}\n"), env
        done = lab.run("b", [sys.executable, "-c", code], env={"HOROVOD_GLOO_IFACE": "ib0"})
        assert (
            "HOROVOD_GLOO_IFACE names no interface of this host, b, that has an address: it has eth0, net1"
            in done.output
        )
    finally:
        lab.run("b", ["ip", "link", "del", "net1"])


@pytest.fixture(name="step")
def step_of_slurms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Met]:
    """Meets the other of two ranks that srun has started. The node's name leads to eth0's address, and ib0 has another
    one."""
    for name, value in (("STEP_NODELIST", "localhost"), ("JOB_ID", str(os.getpid())), ("STEP_ID", "0")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(own_address, "interfaces", lambda: [("eth0", "127.0.0.1"), ("ib0", "127.0.0.2")])
    monkeypatch.setattr(own_address, "_is_of_this_host", lambda ip: ip.startswith("127."))
    wanted = TcpWanted("", str(secret_file(tmp_path)), "tcp", None)

    def meets(rank: int) -> Met:
        met = meet_ranks("slurm", Placement(rank, 2, 0, 1, rank, 2, "slurm", ""), wanted, 1, SOON_S)
        met.listener.close()
        return met

    return meets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "ib0"),
        ("NCCL_SOCKET_IFNAME", "=gone0"),
        ("RINGREDUCE_NETWORK_INTERFACE", "ib0,eth0"),
        ("HOROVOD_GLOO_IFACE", "eth0"),
    ],
)
def test_under_slurm_rank_0_listens_where_the_first_nodes_name_leads(
    step: Callable[[int], Met], name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others look there. NCCL's variable says where NCCL is to go."""
    monkeypatch.setenv(name, value)
    with ThreadPoolExecutor(2) as pool:
        assert {met.addresses[0][0] for met in pool.map(step, range(2))} == {"127.0.0.1"}


@pytest.mark.parametrize("name", ["RINGREDUCE_NETWORK_INTERFACE", "HOROVOD_GLOO_IFACE"])
def test_under_slurm_an_interface_to_which_the_first_nodes_name_does_not_lead(
    step: Callable[[int], Met], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "ib0")
    words = rf"0/2: {name} allows only 127\.0\.0\.2 of .* at localhost, which leads to .*127\.0\.0\.1: set RINGREDUCE_A"
    with pytest.raises(InvalidArgumentError, match=words):
        step(0)


@pytest.mark.parametrize("variable", ["", "RINGREDUCE_NETWORK_INTERFACE"])
def test_under_slurm_a_first_node_that_knows_its_name_as_loopback(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian has it in /etc/hosts; the others may know it by the address that the default route has."""
    leads = {"a": "127.0.1.1", "b": "192.0.2.3"}
    monkeypatch.setattr(own_address, "_addresses", lambda name: [leads.get(name, "")])
    monkeypatch.setattr(own_address, "_source", {"192.0.2.1": "192.0.2.7"}.get)
    monkeypatch.setattr(own_address, "_is_of_this_host", lambda ip: ip == "192.0.2.7")
    monkeypatch.setattr(own_address, "interfaces", lambda: [("eth0", "192.0.2.7"), ("ib0", "192.0.2.8")])
    if variable:
        monkeypatch.setenv(variable, "eth0")
    assert own_address.ip_of_name("a", "rank 0/2") == "192.0.2.7"


def test_the_first_node_of_a_step() -> None:
    for nodes, first in (
        ("a", "a"),
        ("n[3,7-9],m", "n3"),
        ("gpu[007-009]-x,b", "gpu007-x"),
        ("r[1-2]n[04-9]", "r1n04"),
    ):
        assert slurm_step.first_node({"SLURM_STEP_NODELIST": nodes, "SLURM_JOB_NODELIST": "other"}) == first
    assert slurm_step.first_node({"SLURM_JOB_NODELIST": "z1,z2"}) == "z1"
    with pytest.raises(InvalidArgumentError, match="set RINGREDUCE_ADDRESS"):
        slurm_step.first_node({})


def test_steps_have_ports_of_their_own() -> None:
    ports = [
        slurm_step.port({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(1000, 1700)
        for step in range(16)
    ]
    assert len(set(ports)) == len(ports)
    assert min(ports) >= 20000
    assert max(ports) < 32000
    with pytest.raises(InvalidArgumentError, match="SLURM_STEP_ID=None"):
        slurm_step.port({"SLURM_JOB_ID": "1"})


# --- what is used when ------------------------------------------------------------------------------------------------

ONE = {"local_rank": 0, "local_size": 4, "cross_rank": 0, "cross_size": 1}
TWO = {"local_rank": 0, "local_size": 2, "cross_rank": 0, "cross_size": 2}


def means(launcher: str, hosts: Mapping[str, int], transport: str, address: str = "", secret: str = "") -> str | None:
    place = Placement(rank=0, size=4, **hosts, source=launcher, job="")
    return source(place, TcpWanted(address, secret, transport, None))


@pytest.mark.parametrize("launcher", ["openmpi", "pmix", "mpich"])
def test_mpis_ranks_are_connected_by_tcp_when_told(launcher: str) -> None:
    assert means(launcher, TWO, "auto") is None
    assert means(launcher, TWO, "auto", secret="file") is None
    assert means(launcher, TWO, "mpi") is None
    assert means(launcher, TWO, "shm+tcp") == means(launcher, TWO, "tcp") == "mpi"
    assert means(launcher, TWO, "auto", address=":1") == means(launcher, TWO, "auto", address="a:1") == "mpi"
    assert means(launcher, TWO, "auto", address="a:1", secret="file") == "address"
    assert means(launcher, ONE, "shm+tcp") is None
    assert means(launcher, ONE, "tcp") == "host"


@pytest.mark.parametrize("launcher", ["torchrun", "arguments", "ringrun", "horovod"])
@pytest.mark.parametrize("transport", ["shm+tcp", "tcp"])
def test_ranks_of_whose_hosts_nobody_has_said_anything(launcher: str, transport: str) -> None:
    """RANK and WORLD_SIZE alone, say, as in the pods of a PyTorchJob or as a script of Slurm's exports them."""
    words = r"RINGREDUCE_ADDRESS=host:port.*RINGREDUCE_SECRET_FILE.*leave RINGREDUCE_TRANSPORT at auto"
    for secret in ("", "file"):
        if transport == "tcp" or launcher == "torchrun":
            with pytest.raises(UnavailableError, match=words):
                means(launcher, ONE, transport, secret=secret)
        else:  # who numbers the ranks means those of this host, where he says no address
            assert means(launcher, ONE, transport, secret=secret) is None
        assert means(launcher, ONE, transport, address="a:1", secret=secret) == "address"
        assert means(launcher, ONE, "auto", secret=secret) is None
    alone = Placement(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1, source=launcher, job="")
    assert source(alone, TcpWanted("", "", "shm+tcp", None)) is None


def test_torchrun_says_that_all_ranks_are_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UnavailableError, match="RINGREDUCE_ADDRESS=host:port"):
        means("torchrun", ONE, "tcp")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert means("torchrun", ONE, "shm+tcp", secret="file") is None
    assert means("torchrun", ONE, "tcp") == "host"


@pytest.mark.parametrize("launcher", ["torchrun", "slurm"])
def test_ranks_that_no_mpi_has_started_are_connected_by_tcp(launcher: str) -> None:
    for transport in ("auto", "shm+tcp", "tcp"):
        assert means(launcher, TWO, transport, secret="file") == launcher
        assert means(launcher, TWO, transport, address=":1", secret="file") == launcher
        assert means(launcher, TWO, transport, address="a:1", secret="file") == "address"
    with pytest.raises(UnavailableError, match="set RINGREDUCE_SECRET_FILE"):
        means(launcher, TWO, "shm+tcp")
    assert means(launcher, ONE, "auto", secret="file") is None
    assert means("slurm", TWO, "auto") is None  # MPI may be there


@pytest.mark.parametrize("launcher", ["arguments", "ringrun", "horovod"])
def test_ranks_that_nobody_tells_anything(launcher: str) -> None:
    assert means(launcher, TWO, "auto") is None
    for address in (":0", ":65536", ":1x", ":"):
        with pytest.raises(InvalidArgumentError, match=f"address '{address}' is not of the form"):
            means(launcher, TWO, "auto", address=address)
    for hosts in (ONE, TWO):
        with pytest.raises(UnavailableError, match="RINGREDUCE_ADDRESS=host:port"):
            means(launcher, hosts, "tcp")
        with pytest.raises(UnavailableError, match="RINGREDUCE_ADDRESS=host:port"):
            means(launcher, hosts, "auto", address=":1")
        assert means(launcher, hosts, "auto", address="a:1") == "address"
    for transport in ("mpi", "shm"):
        with pytest.raises(InvalidArgumentError, match=f"RINGREDUCE_TRANSPORT={transport}: an address is for TCP"):
            means(launcher, TWO, transport, address="a:1")


def test_ranks_of_ringrun_on_one_host_meet_those_of_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_RENDEZVOUS", "job:" + "00" * 32)
    assert means("ringrun", ONE, "auto", address="a:1", secret="file") is None
    assert means("ringrun", ONE, "tcp", address="a:1", secret="file") == "address"  # it is asked for
    assert means("ringrun", ONE, "auto", address=":1") == "host"
    assert means("ringrun", TWO, "auto", address="a:1", secret="file") == "address"
