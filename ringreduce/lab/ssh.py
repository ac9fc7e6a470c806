"""OpenSSH for the lab: keys, known hosts and settings of its own, in its folder. No password, no agent, no ~/.ssh."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

KEYGEN_TIMEOUT_S = 20

SERVER = """\
Port 22
ListenAddress {address}
HostKey {folder}/{name}_host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
MaxStartups 100
PidFile none
PrintMotd no
"""
# StrictModes refuses keys below /tmp, because anybody may write there; the lab's own folder is closed to others.

CLIENT = """\
Host *
  User root
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  UpdateHostKeys no
  BatchMode yes
  ConnectTimeout 10
  LogLevel ERROR
"""


class Ssh:
    """The lab's OpenSSH files."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        """Makes keys and settings for these hosts (name: address) in a new folder."""
        self._folder = folder
        folder.mkdir(mode=0o700)
        _keygen(folder / "user_key", "lab")
        known = []
        for name, address in addresses.items():
            key = folder / f"{name}_host_key"
            _keygen(key, name)
            (folder / f"{name}_sshd_config").write_text(SERVER.format(folder=folder, name=name, address=address))
            known.append(f"{name},{address} {key.with_suffix('.pub').read_text()}")
        (folder / "known_hosts").write_text("".join(known))
        (folder / "config").write_text(CLIENT.format(folder=folder))
        self.client = folder / "ssh"
        """A command that takes ssh's arguments: what launchers call to reach another host."""
        self.client.write_text(f'#!/bin/sh\nexec ssh -F {folder}/config "$@"\n')
        self.client.chmod(0o700)

    def server(self, name: str) -> list[str]:
        """The daemon's command line on a host. It stays in the foreground and logs to its standard error."""
        sshd = shutil.which("sshd")
        assert sshd is not None  # see requirements.py; it insists on its absolute path
        return [sshd, "-D", "-e", "-f", str(self._folder / f"{name}_sshd_config")]


def _keygen(path: Path, comment: str) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=KEYGEN_TIMEOUT_S)
