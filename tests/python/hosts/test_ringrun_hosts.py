"""ringrun -H over the lab's hosts: what docs/user/hosts.md says of it, and what happens when something ends."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from deadlines import HANG_S, SOON_S
from example_runs import write_data
from numpy.typing import NDArray
from tcp_jobs import secret_file, torchrun

from ringreduce.job.deadline import Deadline
from ringreduce.lab import network
from ringreduce.lab.lab import Lab
from ringreduce.lab.requirements import missing
from ringreduce.lab.slurm import Slurm
from ringreduce.lab.slurm import missing as no_slurm
from ringreduce.launch.launch import AGAIN_S
from ringreduce.launch.python import run_module

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROOT = Path(__file__).resolve().parents[3]
RINGRUN = run_module("ringreduce.launch.ringrun")
SLOW = ["torchrun", "srun"]


@pytest.fixture(name="lab", scope="module")
def fixture_lab() -> Iterator[Lab]:
    with Lab(4) as lab:
        yield lab


def command(lab: Lab, *arguments: str | Path) -> list[str]:
    """ringrun's, with the lab's keys."""
    return [*RINGRUN, f"--ssh-args=-F {lab.ssh.parent / 'config'}", *map(str, arguments)]


def script(lab: Lab, text: str) -> Path:
    """A Python script that all hosts see."""
    path = lab.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(text)
    return path


def lines(text: str) -> list[str]:
    return sorted(text.splitlines())


PLACES = """
import os
import numpy as np
import ringreduce as rr
rr.init()
names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
of_variables = [int(os.environ["HOROVOD_" + name]) for name in names]
of_init = [rr.rank(), rr.size(), rr.local_rank(), rr.local_size(), rr.cross_rank(), rr.cross_size()]
assert of_init == of_variables == [int(os.environ["RINGREDUCE_" + name]) for name in names], of_variables
total = rr.allreduce(np.full(100, rr.rank()), op=rr.Sum)[99]
print(of_init, os.uname().nodename, total, flush=True)
"""
EIGHT = [
    f"[{rank}, 8, {rank % 2}, 2, {rank // 2}, 4] {host} 28"
    for rank, host in enumerate(host for host in "abcd" for _ in "12")
]


def test_eight_ranks_on_four_hosts(lab: Lab) -> None:
    done = lab.run("a", command(lab, "-H", "a:2,b:2,c:2,d:2", sys.executable, script(lab, PLACES)))
    assert (done.status, lines(done.output)) == (0, EIGHT), done.output


def test_a_hostfile_and_a_module(lab: Lab) -> None:
    """From a host that has no rank, to hosts of different sizes."""
    hosts = lab.folder / "hostfile"
    hosts.write_text("# ours\nb slots=1\nc slots=3\n")
    script(lab, PLACES).rename(lab.folder / "places.py")
    run = ["-np", "3", "--hostfile", hosts, "-x", f"PYTHONPATH={lab.folder}", "-m", "places"]
    done = lab.run("a", command(lab, *run))
    expected = ["[0, 3, 0, 1, 0, 2] b 3", "[1, 3, 0, 2, 1, 2] c 3", "[2, 3, 1, 2, 0, 1] c 3"]
    assert (done.status, lines(done.output)) == (0, expected), done.output


def test_one_other_host_shares_memory(lab: Lab) -> None:
    text = "import ringreduce as rr\nrr.init()\nimport os\nprint(rr.size(), 'RINGREDUCE_ADDRESS' in os.environ)\n"
    done = lab.run("a", command(lab, "-H", "b:2", sys.executable, script(lab, text)))
    assert (done.status, done.output) == (0, "2 False\n2 False\n")


def test_the_users_folder_variables_and_words(lab: Lab) -> None:
    text = """
import os, sys
print(os.getcwd(), os.environ.get("MINE"), os.environ.get("NOT_MINE"), os.environ["OMP_NUM_THREADS"], sys.argv[1:])
"""
    words = ["a b", "$HOME", "'", '"', "*", "!"]
    folder = lab.folder / "my folder"
    folder.mkdir()
    run = command(lab, "-H", "a:1,b:1", "-x", "MINE", sys.executable, script(lab, text), *words)
    inside = ["sh", "-c", 'cd "$0" && exec "$@"', folder, *run]
    done = lab.run("a", inside, env={"MINE": "1", "NOT_MINE": "2", "OMP_NUM_THREADS": "3"})
    # Ranks on ringrun's own host have all of its variables.
    assert lines(done.output) == [f"{folder} 1 2 3 {words}", f"{folder} 1 None 3 {words}"]
    assert done.status == 0


def test_a_folder_that_a_host_does_not_have(lab: Lab) -> None:
    with_folder = ["sh", "-c", 'mkdir -p /tmp/only-here && cd /tmp/only-here && exec "$@"', "sh"]
    done = lab.run("a", [*with_folder, *command(lab, "-H", "a:1,b:1", "true")])
    assert done.status == 126
    assert done.output.startswith("ringrun: host b: cannot enter the folder /tmp/only-here: No such file or directory")


def test_a_program_that_does_not_exist(lab: Lab) -> None:
    done = lab.run("a", command(lab, "-H", "a:1,b:1", "no-such-program"))
    assert done.status == 127
    assert "cannot run 'no-such-program': No such file or directory" in done.output


def test_standard_input_is_rank_0s(lab: Lab) -> None:
    text = """
import os, sys
data = sys.stdin.buffer.read()
print(os.environ["RINGREDUCE_RANK"], len(data), data[-4:], flush=True)
"""
    run = command(lab, "-H", "b:1,a:1", sys.executable, script(lab, text))
    with lab.start("a", run, stdin=subprocess.PIPE) as process:
        output, _ = process.communicate("x" * 3_000_000 + "end\n", timeout=HANG_S)
    assert lines(output) == ["0 3000004 b'end\\n'", "1 0 b''"]
    assert process.returncode == 0


def test_a_rank_that_does_not_read_its_input_ends_all_the_same(lab: Lab) -> None:
    run = command(lab, "-H", "b:1,a:1", "true")
    with lab.start("a", run, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.wait(HANG_S) == 0


def test_output_is_whole_lines_with_tags_and_copies(lab: Lab) -> None:
    text = """
import os, sys
rank = os.environ["RINGREDUCE_RANK"]
for number in range(20_000):
    sys.stdout.write(f"{rank} {number} {'.' * 50}\\n")
sys.stderr.write("one\\ntwo")
"""
    folder = lab.folder / "copies"
    run = command(lab, "-H", "a:1,b:1", "--tag-output", "--output-filename", folder, sys.executable, script(lab, text))
    done = lab.run("a", run)
    assert done.status == 0
    for rank in range(2):
        expected = [f"{rank} {number} {'.' * 50}" for number in range(20_000)]
        tag = f"[{rank}]<stdout>: "
        assert [line[len(tag) :] for line in done.output.splitlines() if line.startswith(tag)] == expected
        assert [line for line in done.output.splitlines() if line.startswith(f"[{rank}]<stderr>: ")] == [
            f"[{rank}]<stderr>: one",
            f"[{rank}]<stderr>: two",
        ]
        assert (folder / f"rank.{rank}" / "stdout").read_text().splitlines() == expected
        assert (folder / f"rank.{rank}" / "stderr").read_text() == "one\ntwo"


def test_a_reader_that_goes_away_ends_the_ranks(lab: Lab) -> None:
    run = command(lab, "-H", "a:1,b:1", "yes")
    done = lab.run("a", ["bash", "-c", '"$@" 2>/dev/null | head -n 3; echo ${PIPESTATUS[0]}', "bash", *run])
    assert done.output.splitlines() == ["y", "y", "y", str(128 + signal.SIGPIPE)]


def test_output_that_nobody_reads_stops_the_ranks_and_not_ringrun(lab: Lab) -> None:
    text = """
import os, sys
for number in range(200):
    os.write(1, b"x" * (1 << 20))
    with open(sys.argv[0] + ".count", "w") as file:
        file.write(str(number))
os.write(1, b"\\nend\\n")
"""
    count = Path(f"{script(lab, text)}.count")
    with lab.start("a", command(lab, "-H", "b:1", sys.executable, script(lab, text))) as process:
        deadline = Deadline(HANG_S)
        before = "0"
        while (now := count.read_text() if count.exists() else "") != before or not now:
            assert not deadline.expired()
            assert int(now or 0) < 20  # MiB: what the agent, ringrun and pipes hold
            before = now
            time.sleep(1)
        output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 0
    assert len(output) == 200 * (1 << 20) + len("\nend\n")
    assert output.endswith("\nend\n")


TRAINS_AND_SAVES = """
import os, runpy, sys
import numpy, torch
parameters = []
init = torch.optim.SGD.__init__
def noted(self, params, *args, **kwargs):
    parameters[:] = params = list(params)
    init(self, params, *args, **kwargs)
torch.optim.SGD.__init__ = noted
where, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
if {os.environ.get(name) for name in ("RINGREDUCE_RANK", "RANK", "SLURM_PROCID")} & {"0"}:
    numpy.save(where, torch.cat([one.detach().flatten() for one in parameters]).numpy())
"""


@pytest.mark.parametrize("launcher", ["ringrun", *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)])
def test_training_is_the_same_on_eight_ranks_of_four_hosts(lab: Lab, launcher: str) -> None:
    """LeNet in float64: rank 0's parameters are those of one rank alone, but for the order of sums."""
    pytest.importorskip("torch")
    result, saved = lab.folder / "result.json", lab.folder / "parameters.npy"
    train = [sys.executable, script(lab, TRAINS_AND_SAVES), saved]
    train += [ROOT / "examples" / "torch_fashion_mnist.py", "--model", "lenet", "--epochs", "1"]
    train += ["--batch-size", "32", "--dtype", "float64", "--json", result]
    env = {"RINGREDUCE_DATA": str(write_data(lab.folder / f"data-{launcher}")), "OMP_NUM_THREADS": "1"}

    def parameters(ranks: int) -> NDArray[np.float64]:
        trained = json.loads(result.read_text())
        assert trained["ranks"] == ranks
        assert trained["epoch"][0]["loss"] > 0
        result.unlink()
        found = np.load(saved)
        saved.unlink()
        assert (found.dtype, np.isfinite(found).all()) == (np.float64, True)
        return np.asarray(found)

    done = lab.run("a", command(lab, "-H", "a:1", *train), env=env)
    assert done.status == 0, done.output
    alone = parameters(1)
    if launcher == "ringrun":
        done = lab.run("a", command(lab, "-H", "a:2,b:2,c:2,d:2", *train), env=env)
        assert done.status == 0, done.output
    else:
        env["RINGREDUCE_SECRET_FILE"] = str(secret_file(lab.folder))
    if launcher == "torchrun":
        status, outputs = torchrun(lab, train[1:], env, "abcd")
        assert status == [0] * 4, outputs
    if launcher == "srun":
        if reason := no_slurm():
            pytest.skip(reason)
        with Slurm(lab, slots=2) as cluster:
            done = cluster.run(["srun", "-n", "8", "-N", "4", "--mpi=none", "--export=ALL", *train], env=env)
        assert done.status == 0, done.output
    eight = parameters(8)
    assert np.linalg.norm(eight - alone) < 1e-10 * np.linalg.norm(alone)


# --- Ends -------------------------------------------------------------------------------------------------------------

TRAINS = """
import os, sys
import numpy as np
import ringreduce as rr
rr.init()
rr.allreduce(np.ones(1000))
print("ready", flush=True)
while True:
    rr.allreduce(np.ones(100_000), op=rr.Sum)
    if rr.rank() == 5 and os.path.exists(sys.argv[0] + ".raise"):
        raise ValueError("out of luck")
"""


def running(lab: Lab, text: str = TRAINS, *options: str, ranks: int = 8, from_host: str = "a") -> subprocess.Popen[str]:
    """A job on all hosts, once all ranks are ready."""
    process = lab.start(from_host, command(lab, "-H", "a:2,b:2,c:2,d:2", *options, sys.executable, script(lab, text)))
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(ranks)]
    assert said == ["ready\n"] * ranks, said + process.stdout.readlines()
    return process


def ended(lab: Lab, process: subprocess.Popen[str], seconds: float = HANG_S) -> list[str]:
    """What ringrun says to its end, within so many seconds; nothing of the job is left on any host."""
    output, _ = process.communicate(timeout=seconds)
    left(lab)
    return output.splitlines()


def left(lab: Lab, seconds: float = SOON_S) -> None:
    """Waits until no host has a process of a job."""
    deadline = Deadline(seconds)
    while found := {host: at for host in lab.hosts if (at := lab.processes(host))}:
        assert not deadline.expired(), found
        time.sleep(0.02)


def rank_pids(lab: Lab, host: str, words: str) -> list[int]:
    """The Python processes of a host that run what has these words in its name."""
    found = {pid: line.split(" ") for pid, line in lab.processes(host).items()}
    return [pid for pid, line in found.items() if line[0] == sys.executable and words in " ".join(line[1:3])]


@pytest.mark.parametrize("host", ["a", "c"])
def test_a_killed_rank_ends_the_job_everywhere(lab: Lab, host: str) -> None:
    with running(lab) as process:
        victim = min(rank_pids(lab, host, str(script(lab, TRAINS))))
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        said = ended(lab, process)
        seconds = time.monotonic() - killed
    rank = {"a": 0, "c": 4}[host]
    assert sum(f"lost rank {rank}" in line for line in said if line.startswith("ringreduce.errors.PeerLostError")) == 7
    assert process.returncode == 137
    assert said[-1].startswith(f"ringrun: the first to fail was rank {rank} on host {host}: it was killed by signal 9 ")
    assert seconds < SOON_S


def test_an_exception_is_named_last(lab: Lab) -> None:
    with running(lab) as process:
        Path(f"{script(lab, TRAINS)}.raise").touch()
        said = ended(lab, process)
    Path(f"{script(lab, TRAINS)}.raise").unlink()
    name = script(lab, TRAINS).name
    first = "the first uncaught exception was that of rank 5 on host c"
    assert said[-1] == f"ringrun: {first}: ValueError: out of luck ({name}:11)"
    assert process.returncode == 1


def test_a_killed_ringrun_ends_the_ranks_of_all_hosts(lab: Lab) -> None:
    with running(lab):
        (launcher,) = [pid for pid, line in lab.processes("a").items() if "launch.ringrun" in line]
        os.kill(launcher, signal.SIGKILL)
        left(lab)


def test_a_killed_ringrun_ends_ranks_that_say_and_need_nothing(lab: Lab) -> None:
    """No lost rank and no output that nobody takes ends them: their agents have to see that ringrun has gone."""
    script = "echo ready; sleep 1000; true"  # the kernel does not kill the rank's child
    with lab.start("a", command(lab, "-H", "a:1,b:1,c:1", "sh", "-c", script)) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["ready\n"] * 3
        (launcher,) = [pid for pid, line in lab.processes("a").items() if "launch.ringrun" in line]
        os.kill(launcher, signal.SIGKILL)
        left(lab)


@pytest.mark.parametrize("host", ["a", "b"])
def test_a_killed_agent_ends_its_ranks_and_the_job(lab: Lab, host: str) -> None:
    with running(lab) as process:
        (agent,) = [
            pid
            for pid, line in lab.processes(host).items()
            if line.startswith(sys.executable) and "launch.remote" in line
        ]
        os.kill(agent, signal.SIGKILL)
        said = ended(lab, process)
    name = "localhost" if host == "a" else host
    first = {"a": 0, "b": 2}[host]
    why = f"it was lost with its host: the connection to {name} has ended"
    assert said[-1].startswith(f"ringrun: the first to fail was rank {first} on host {host}: {why}")
    assert process.returncode == 255


def test_a_host_that_vanishes_ends_the_job(lab: Lab) -> None:
    with running(lab) as process:
        lab.cut("d")
        try:
            output, _ = process.communicate(timeout=HANG_S)
        finally:
            lab.mend("d")
    assert "PeerLostError" in output
    assert process.returncode != 0
    left(lab, HANG_S)


@pytest.mark.parametrize("word", ["INT", "TERM", "USR1"])
def test_signals_reach_all_ranks(lab: Lab, word: str) -> None:
    text = f"""
import os, signal, time
def stop(signum, frame):
    os.write(1, b"stopping\\n")
    os._exit(0)
signal.signal(signal.SIG{word}, stop)
print("ready", flush=True)
while True:
    time.sleep(100)
"""
    with running(lab, text) as process:
        process.send_signal(signal.Signals["SIG" + word])
        said = ended(lab, process)
    assert said == [f"ringrun: SIG{word}: passing it on to all ranks", *["stopping"] * 8]
    assert process.returncode == 0


def test_a_signal_that_ssh_gets_too_leaves_ranks_time_to_save_their_work(lab: Lab) -> None:
    """As of systemctl and scancel, which signal all processes of ringrun's host."""
    text = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
print("saved", flush=True)
"""
    with running(lab, text) as process:
        clients = [pid for pid, line in lab.processes("a").items() if line.startswith("ssh ")]
        assert len(clients) == 3
        for pid in clients:
            os.kill(pid, signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        said = ended(lab, process)
    assert said == ["ringrun: SIGTERM: passing it on to all ranks", *["saved"] * 8]
    assert process.returncode == 0


def test_a_second_signal_kills_all_ranks(lab: Lab) -> None:
    text = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(1000)
"""
    with running(lab, text) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "ringrun: SIGINT: passing it on to all ranks\n"
        time.sleep(AGAIN_S)  # what is tested here is a signal that comes so much later
        process.send_signal(signal.SIGINT)
        said = ended(lab, process)
    assert said[0] == "ringrun: SIGINT again: killing all ranks"
    assert process.returncode == 137


def test_ranks_that_do_not_end_are_killed_on_all_hosts(lab: Lab) -> None:
    text = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while os.environ["RINGREDUCE_RANK"] != "3" or not os.path.exists(sys.argv[0] + ".exit"):
    time.sleep(0.01)
raise SystemExit(7)
"""
    with running(lab, text, "--grace", "0.2") as process:
        Path(f"{script(lab, text)}.exit").touch()
        said = ended(lab, process)
    assert said[0].startswith("ringrun: rank 3 on host b (pid ")
    assert "exited with status 7" in said[0]
    assert said[0].endswith("the others have 0.2 s to end")
    others = "ranks 0, 1, 2, 4, 5, 6, 7"
    assert [line for line in said[1:] if "on host" not in line] == [
        f"ringrun: {others} still running: sending SIGTERM",
        f"ringrun: {others} still running: sending SIGKILL",
    ]
    assert process.returncode == 7


# --- Secrets and addresses --------------------------------------------------------------------------------------------

TELLS = """
import os, sys
import ringreduce as rr
rr.init()
with open(os.environ["RINGREDUCE_SECRET_FILE"]) as file:
    print(file.read(), flush=True)
sys.stdin.read()
rr.barrier()
"""


IN_CONTAINERS = """
import ringreduce as rr
import numpy as np
with rr.init() as world:
    print(world.rank, world.cross_size, rr.allreduce(np.ones(3), op=rr.Sum)[0])
"""


def test_ranks_in_user_namespaces_of_their_own(lab: Lab) -> None:
    """As by `ringrun -H a:1,b:1 apptainer exec image python train.py`."""
    isolated = ["unshare", "--user", "--map-root-user"]
    if lab.run("a", [*isolated, "true"]).status:
        pytest.skip("there can be no user namespaces here")
    done = lab.run("a", command(lab, "-H", "a:1,b:1", *isolated, sys.executable, script(lab, IN_CONTAINERS)))
    assert lines(done.output) == ["0 2 2.0", "1 2 2.0"]


def test_the_secret_is_in_no_command_line_and_no_variable(lab: Lab) -> None:
    run = command(lab, "-H", "a:2,b:2", sys.executable, script(lab, TELLS))
    with lab.start("a", run, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        secrets = {process.stdout.readline().strip() for _ in range(4)}
        (secret,) = secrets
        assert len(secret) == 64
        looked = 0
        for pid in [pid for host in lab.hosts for pid in lab.processes(host)]:
            for name in ("cmdline", "environ"):
                content = Path(f"/proc/{pid}/{name}").read_bytes()
                looked += bool(content)
                assert secret.encode() not in content
        assert looked >= 2 * (4 + 2 + 1 + 1)  # ranks, agents, ringrun, ssh
        output, _ = process.communicate("", timeout=HANG_S)
    assert (process.returncode, output) == (0, "")


def dummy(lab: Lab, host: str, name: str, ip: str) -> Callable[[], None]:
    """A network interface that leads nowhere; returns what takes it away."""
    pid = lab._pids[host]
    network.batch(
        pid,
        "ip",
        [f"link add {name} type veth peer name {name}p", f"addr add {ip}/24 dev {name}", f"link set {name} up"],
    )
    return lambda: network.batch(pid, "ip", [f"link del {name}"])


def test_an_address_that_only_one_host_has_is_not_taken(lab: Lab) -> None:
    """As docker0, which has the same address on all hosts, and sorts before eth0."""
    undo = [dummy(lab, host, "aaa0", "172.31.0.1") for host in "ab"]
    try:
        run = command(lab, "-H", "b:1,c:1,a:1", "-v", sys.executable, script(lab, PLACES))
        done = lab.run("a", run)
        assert done.status == 0, done.output
        assert "ringrun: rank 0 listens at 10.77.0.2:" in done.output
        options = ["--network-interface", "aaa0", "--start-timeout", "20"]
        done = lab.run("a", command(lab, "-H", "b:1,c:1,a:1", *options, sys.executable, script(lab, PLACES)))
    finally:
        for call in undo:
            call()
    assert done.status == 255
    assert "no address of b, where rank 0 runs, is reached from all hosts. From " in done.output
    assert "172.31.0.1 port " in done.output


def test_an_interface_that_does_not_exist(lab: Lab) -> None:
    done = lab.run("a", command(lab, "-H", "b:1,c:1", "--network-interface", "ib7", "true"))
    assert done.status == 255
    assert "host b: it has no network interface that --network-interface allows, by which " in done.output


def test_the_users_address(lab: Lab) -> None:
    for address in ("10.77.0.2:29517", ":29517"):
        done = lab.run("a", command(lab, "-H", "b:1,c:1", "-v", "true"), env={"RINGREDUCE_ADDRESS": address})
        assert done.status == 0
        assert "ringrun: rank 0 listens at 10.77.0.2:29517, on host b" in done.output
    done = lab.run("a", command(lab, "-H", "b:1,c:1", "true"), env={"RINGREDUCE_ADDRESS": "10.77.0.9:29517"})
    assert done.status == 255
    assert "rank 0 cannot listen there: 10.77.0.9: Cannot assign requested address" in done.output


def test_two_names_of_one_host(lab: Lab) -> None:
    done = lab.run("a", command(lab, "-H", "b:1,10.77.0.2:1", "true"))
    assert done.status == 255
    assert "it is the same host as " in done.output


def test_a_job_of_two_inits_listens_at_its_port_again(lab: Lab) -> None:
    text = """
import ringreduce as rr
for _ in range(3):
    rr.init()
    rr.barrier()
    rr.shutdown()
print("done")
"""
    done = lab.run("a", command(lab, "-H", "b:2,c:2", sys.executable, script(lab, text)))
    assert (done.status, done.output) == (0, "done\n" * 4)
