"""The lab as its users hold it: hosts up on entering, nothing left on leaving."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType

from ringreduce.errors import InvalidArgumentError, TimeoutError, UnavailableError
from ringreduce.lab import host_environment, network
from ringreduce.lab.cables import Cables
from ringreduce.lab.mpi import Mpi, settings
from ringreduce.lab.network import Counters
from ringreduce.lab.ssh import Ssh

NAMES = "abcdefgh"
START_S = 20.0  # for a keeper to make its namespaces, and for a daemon to listen
END_S = 20.0  # for a process whose end has been asked for
REST_S = 3.0  # for the output of one that has ended


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    """Exit status; 128 + N if it was killed by signal N."""
    output: str
    """Standard output and error together."""


class Lab:
    """`hosts` hosts named a, b, c, ... with their own namespaces and sshd, each on one link of this rate.

    Args:
        hosts: 1 to 8.
        rate: of each link and direction, as `tc` spells it; None = not shaped.
        shared: folders that all hosts see although they lie below /tmp, /var/tmp, /dev/shm or /run, where each host
            has its own files. lab.folder, the working directory, the interpreter's environment and this process's
            other sources of modules are always seen. One of these four folders itself is each host's own, also where it
            is the working directory.
        cables: what delays, reorders and loses packets; None = nothing does. One Python process carries the packets of
            all cables, which may be slower than the rate.

    Raises InvalidArgumentError for another number of hosts. Entering raises UnavailableError, with nothing left, if the
    machine does not allow it, or TimeoutError.
    """

    def __init__(
        self, hosts: int = 2, rate: str | None = "1gbit", shared: Sequence[Path] = (), cables: Cables | None = None
    ) -> None:
        if not 1 <= hosts <= len(NAMES):
            raise InvalidArgumentError(f"a lab has 1 to {len(NAMES)} hosts, not {hosts}")
        self.hosts = tuple(NAMES[:hosts])
        """Names, in the order of their addresses 10.77.0.1, 10.77.0.2, ..."""
        self.rate = rate
        self._shared = tuple(shared)
        self._cables = cables
        self._carrier: subprocess.Popen[bytes] | None = None
        self._undo = ExitStack()
        self._pids: dict[str, int] = {}
        self._daemons: set[int] = set()

    def __enter__(self) -> Lab:
        try:
            working_folder = Path.cwd()
        except FileNotFoundError:
            raise UnavailableError("the working directory has been removed") from None
        with ExitStack() as undo:
            self.folder = Path(tempfile.mkdtemp(prefix="ringreduce-lab-"))
            """Seen by all hosts in the same place: the cluster's shared file system. Goes when the lab goes."""
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._switch = self._keep(undo, "switch", str(self.folder))
            addresses = {name: network.address(index) for index, name in enumerate(self.hosts)}
            self._ssh = Ssh(self.folder / "ssh", addresses)
            hosts_file = self.folder / "hosts"
            lines = [("127.0.0.1", "localhost"), *((address, name) for name, address in addresses.items())]
            hosts_file.write_text("".join(f"{address} {name}\n" for address, name in lines))
            shared = [
                self.folder,
                *host_environment.module_folders(),
                Path(sys.prefix),
                Path(sys.base_prefix),
                working_folder,
                *self._shared,
            ]
            for name in self.hosts:
                arguments = (
                    "host",
                    name,
                    str(hosts_file),
                    *dict.fromkeys(str(Path(path).resolve()) for path in shared),
                )
                self._pids[name] = self._keep(undo, *arguments)
            if self._cables is not None:
                ends = [f"{name}={pid}" for name, pid in self._pids.items()]
                words = [str(self._switch), *map(str, astuple(self._cables)), *ends]
                self._carrier, _ = self._begin(undo, "cables", *words)
            network.connect(self._switch, self._pids, self.rate, self._cables is not None)
            for name in self.hosts:
                self._serve(undo, name)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def ssh(self) -> Path:
        """A command like `ssh` that reaches the lab's hosts from within: for launchers."""
        return self._ssh.client

    def inside(self, host: str) -> list[str]:
        """The words that run the command behind them on a host; the command ends with the process of these words."""
        return host_environment.run_module("ringreduce.lab.enter", str(self._pids[host]))

    def start(
        self,
        host: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        output: int | None = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Starts a command on a host, by default with its output and errors in one pipe. It ends with the lab.

        Args:
            env: added to this process's environment, without launchers' variables and with a PYTHONPATH by which
                Python finds the modules that this process finds.
            stdin, output: as Popen's; None = the caller's.

        Raises UnavailableError where nothing carries the packets of the cables any more.
        """
        if self._carrier is not None and self._carrier.poll() is not None:
            raise UnavailableError("the process that carries the lab's packets has ended; its reason is above")
        return subprocess.Popen(
            [*self.inside(host), *map(str, command)],
            env=host_environment.variables(env),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            text=True,
            errors="replace",
        )

    def run(
        self,
        host: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 240,
    ) -> Done:
        """Runs a command on a host. Raises TimeoutError with its output after timeout_s seconds."""
        with self.start(host, command, env=env) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                end(process)  # a launcher that is asked to end ends its ranks, and both may say where they were
                output = _rest(process)
                line = " ".join(map(str, command))
                raise TimeoutError(f"on host {host}, not within {timeout_s:g} s: {line}\n{output}") from None
            except BaseException:
                end(process)
                raise
        return Done(process.returncode, output)

    def mpirun_command(
        self,
        mpi: Mpi,
        ranks_per_host: int,
        command: Sequence[str | Path],
        *,
        hosts: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """What mpirun() runs on the first host: the command and the additions to the environment."""
        added = settings(self.ssh) | mpi.mpi4py_environ()
        added |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(env or {})
        launch = mpi.command(hosts or self.hosts, ranks_per_host, host_environment.variables(added))
        return [*launch, *map(str, command)], added

    def mpirun(
        self,
        mpi: Mpi,
        ranks_per_host: int,
        command: Sequence[str | Path],
        *,
        hosts: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 240,
    ) -> Done:
        """Runs a program under `mpirun` on several ranks of each host (default: all hosts), from the first host."""
        launch, added = self.mpirun_command(mpi, ranks_per_host, command, hosts=hosts, env=env)
        return self.run((hosts or self.hosts)[0], launch, env=added, timeout_s=timeout_s)

    def cut(self, host: str) -> None:
        """Has the switch drop whatever the host sends or is sent, without a word to anybody. mend() ends that."""
        network.tool_in(self._switch, ["ip", "link", "set", network.port(host), "nomaster"])

    def mend(self, host: str) -> None:
        """Ends cut()."""
        network.tool_in(self._switch, ["ip", "link", "set", network.port(host), "master", "bridge0"])

    def cut_direction(self, sender: str, receiver: str) -> None:
        """Has nothing that `sender` sends to `receiver` arrive any more, without a word; the other way all does."""
        # To an Ethernet address that nobody has: the switch hands it to all ports, and the hosts drop it.
        nobody = f"lladdr 02:00:00:00:00:ff dev {network.INTERFACE} nud permanent"
        to = network.address(self.hosts.index(receiver))
        network.batch(self._pids[sender], "ip", [f"neigh replace {to} {nobody}"])

    def mend_direction(self, sender: str, receiver: str) -> None:
        """Ends cut_direction()."""
        to = network.address(self.hosts.index(receiver))
        network.batch(self._pids[sender], "ip", [f"neigh del {to} dev {network.INTERFACE}"])

    @contextmanager
    def filter(self, host: str, match: str, verdict: str) -> Iterator[Callable[[], int]]:
        """What arrives at the host and matches gets the verdict, such as "drop", both as nft spells them. Needs nft.

        Yields a function that says how many packets have matched so far.
        """
        pid = self._pids[host]
        network.filter_arrivals(pid, match, verdict)
        try:
            yield lambda: network.filtered(pid)
        finally:
            network.end_filter(pid)

    def firewall(self, host: str, ports: str) -> AbstractContextManager[Callable[[], int]]:
        """Nobody can connect to the host but at ssh's port and these, as nft spells a set: "29400, 29500-29509"."""
        return self.filter(host, f"tcp flags & (syn | ack) == syn tcp dport != {{ 22, {ports} }}", "drop")

    def counters(self) -> Counters:
        """Bytes that each host's link has carried since the lab began."""
        return network.counters(self._switch, self.hosts)

    def namespaces(self) -> set[str]:
        """Identities of all the lab's namespaces, such as "net:[4026532281]"; while it is up."""
        kinds = ("net", "uts", "ipc", "mnt", "pid")
        found = {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in self._pids.values() for kind in kinds}
        return found | {os.readlink(f"/proc/{self._switch}/ns/net")}

    def listens(self, host: str, port: int) -> bool:
        """Whether somebody accepts connections to this TCP port on the host."""
        return network.listens(self._pids[host], port)

    def shape(self, host: str, rate: str) -> None:
        """What the host sends goes at this rate from now on, as `tc` spells it."""
        network.shape(self._pids[host], [network.INTERFACE], rate)

    def queue(self, host: str) -> str:
        """What `tc -s` says of the host's end of its link."""
        return network.tool_in(self._pids[host], ["tc", "-s", "qdisc", "show", "dev", network.INTERFACE])

    def processes(self, host: str) -> dict[int, str]:
        """The host's processes by PID (as this process counts), without its first one and its ssh daemon."""
        namespace = os.readlink(f"/proc/{self._pids[host]}/ns/pid")
        mine = {self._pids[host], *self._daemons}
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in mine:
                try:
                    if os.readlink(entry / "ns" / "pid") == namespace:
                        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                        found[int(entry.name)] = command.strip()
                except OSError:  # it has just ended
                    continue
        return found

    def _keep(self, undo: ExitStack, *arguments: str) -> int:
        """Starts a keeper; returns the PID of the process that stands for its namespaces."""
        return self._begin(undo, "keeper", *arguments)[1]

    def _begin(self, undo: ExitStack, program: str, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
        """Starts a program of the lab's own, which ends when the lab does, and gives the PID that it says."""
        keeper = subprocess.Popen(
            host_environment.run_module(f"ringreduce.lab.{program}", *arguments),
            env=host_environment.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the process that runs the lab
        )
        undo.callback(_let_go, keeper)
        assert keeper.stdout is not None
        told = dict.fromkeys(("pid", "up"), "")
        while not all(told.values()):
            word, _, number = keeper.stdout.readline().decode().partition(" ")
            if not word:
                what = " ".join((program, *arguments[:2]))
                raise UnavailableError(f"the lab's {what} did not come up; its reason is above")
            told[word] = number
        return keeper, int(told["pid"])

    def _serve(self, undo: ExitStack, name: str) -> None:
        log = self.folder / f"{name}.sshd.log"
        with log.open("w") as file:
            server = self.start(name, self._ssh.server(name), output=file.fileno())
        undo.callback(end, server)

        def listening() -> bool:
            if server.poll() is not None:
                raise UnavailableError(f"sshd on host {name} ended with status {server.returncode}: {log.read_text()}")
            return self.listens(name, 22)

        wait_until(listening, f"sshd on host {name} listens", START_S)
        self._daemons.update(self.processes(name))


def end(process: subprocess.Popen[str]) -> None:
    """Asks a process that start() gave to end, and kills it after END_S seconds, or at once if a signal raises."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    finally:  # else who leaves by that exception would wait for the process, which nobody kills
        process.kill()  # nothing if it has ended
        process.wait()


def _rest(process: subprocess.Popen[str]) -> str:
    """All output of a process that has ended, and whose communicate() has run out of time: that keeps what it read."""
    try:
        return process.communicate(timeout=REST_S)[0]
    except subprocess.TimeoutExpired as error:  # something that the process has started still has the pipe
        found = error.output or b""
        return found if isinstance(found, str) else found.decode(errors="replace")  # bytes, whatever Popen was told


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Looks every 10 ms. Raises TimeoutError after timeout_s seconds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(0.01)


def _let_go(keeper: subprocess.Popen[bytes]) -> None:
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    keeper.stdin.close()
    keeper.stdout.close()
    try:
        keeper.wait(END_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.wait()
