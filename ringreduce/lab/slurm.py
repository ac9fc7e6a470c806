"""Slurm on the lab's hosts: munged and slurmd on each, slurmctld on the first. All that they write is the hosts' own.

with Lab(hosts=2) as lab, Slurm(lab, slots=4) as slurm:
    done = slurm.run(["srun", "-n", "4", sys.executable, "train.py"])
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from ringreduce.errors import TimeoutError, UnavailableError
from ringreduce.lab.lab import Done, Lab, end, wait_until
from ringreduce.lab.network import address

TOOLS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
"""Command: Debian's package (slurm-wlm brings the last three)."""
START_S = 30.0

SETTINGS = """\
ClusterName=lab
SlurmctldHost={first}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
CredType=cred/munge
MailProg=/bin/true
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=3
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# config_overrides: a node has the slots that are written down here, not the processors that are there.
CGROUPS = "CgroupPlugin=cgroup/v1\n"  # named, slurmd does not look for it; linuxproc and task/none do not use it


def missing() -> str | None:
    """Why there can be no Slurm here, or None."""
    absent = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    return f"Slurm needs {' '.join(absent)} (apt-get install slurm-wlm munge)" if absent else None


class Slurm:
    """A Slurm cluster of all hosts of a lab, each a node with `slots` processors. It ends with the `with` block."""

    def __init__(self, lab: Lab, slots: int = 4) -> None:
        self.lab = lab
        self._folder = lab.folder / "slurm"
        self._slots = slots
        self._undo = ExitStack()

    def __enter__(self) -> Slurm:
        """Raises UnavailableError with a daemon's log if it does not come up."""
        with ExitStack() as undo:
            self._folder.mkdir()
            key = self._folder / "munge.key"
            key.write_bytes(os.urandom(128))
            key.chmod(0o400)
            (self._folder / "slurm.conf").write_text(self._settings())
            (self._folder / "cgroup.conf").write_text(CGROUPS)
            for host in self.lab.hosts:
                self._start(undo, host, "munged", ["munged", "--foreground", "--force", *self._munge(key)])
                self._wait_for(host, "munged", ["test", "-S", "/run/munge.socket"])
            self._start(undo, self.lab.hosts[0], "slurmctld", ["slurmctld", "-D"])
            for host in self.lab.hosts:
                self._start(undo, host, "slurmd", ["slurmd", "-D"])
            idle = r'test "$(sinfo --noheader --format %t%D)" = ' + f"idle{len(self.lab.hosts)}"
            self._wait_for(self.lab.hosts[0], "slurmctld", ["sh", "-c", idle])
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    @property
    def environ(self) -> dict[str, str]:
        """What a command needs in its environment to find this cluster."""
        return {"SLURM_CONF": str(self._folder / "slurm.conf"), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}

    def run(
        self, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> Done:
        """Runs srun, sbatch, ... on the first host. Raises TimeoutError with its output after timeout_s seconds."""
        return self.lab.run(self.lab.hosts[0], command, env=self.environ | dict(env or {}), timeout_s=timeout_s)

    def logs(self) -> str:
        """What the daemons have said."""
        parts = [f"--- {path.name}\n{path.read_text()}" for path in sorted(self._folder.glob("*.log"))]
        return "\n".join(parts)

    def _settings(self) -> str:
        nodes = [
            f"NodeName={host} NodeAddr={address(index)} CPUs={self._slots} State=UNKNOWN\n"
            for index, host in enumerate(self.lab.hosts)
        ]
        return SETTINGS.format(first=self.lab.hosts[0]) + "".join(nodes)

    @staticmethod
    def _munge(key: Path) -> list[str]:
        places = {"socket": "/run/munge.socket", "pid-file": "/run/munge.pid", "seed-file": "/run/munge.seed"}
        places |= {"key-file": str(key), "log-file": "/run/munge.log"}
        return [f"--{name}={place}" for name, place in places.items()]

    def _start(self, undo: ExitStack, host: str, daemon: str, command: Sequence[str]) -> None:
        made = self.lab.run(host, ["mkdir", "-p", "/run/slurm/state", "/run/slurm/spool"])
        assert made.status == 0, made.output
        with (self._folder / f"{host}.{daemon}.log").open("w") as log:
            process = self.lab.start(host, command, env=self.environ, output=log.fileno())
        undo.callback(end, process)
        self._daemon: subprocess.Popen[str] = process

    def _wait_for(self, host: str, daemon: str, sign: Sequence[str]) -> None:
        """Until this command succeeds on the host."""

        def up() -> bool:
            if self._daemon.poll() is not None:
                raise UnavailableError(f"{daemon} ended with status {self._daemon.returncode}\n{self.logs()}")
            return self.lab.run(host, sign, env=self.environ).status == 0

        try:
            wait_until(up, f"{daemon} is up", START_S)
        except TimeoutError as error:
            raise UnavailableError(f"{error}\n{self.logs()}") from None
