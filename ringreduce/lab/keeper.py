"""The first process of a host, or of the switch: makes its namespaces and lives until its standard input ends.

    python -m ringreduce.lab.keeper host NAME HOSTS_FILE SHARED_FOLDER...
    python -m ringreduce.lab.keeper switch FOLDER

Prints "pid N", N being the process that stands for the namespaces, and "up 1" when all is set up. Standard input is a
pipe of the process that runs the lab: it ends however that process ends. A host's keeper is process 1 of its PID
namespace, so all of the host's processes end with it. The switch's keeper removes the lab's folder at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
import uuid
from pathlib import Path

from ringreduce.lab import kernel

OWN = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders in which a host has its own files."""
LOGINS = ("/var/log/wtmp", "/var/log/lastlog", "/var/log/btmp")
"""Where sshd records logins. A host has its own, as far as the machine has them."""
SHADOW = "/etc/shadow"
PRIVATE = (*LOGINS, SHADOW)
"""What others may not read; sshd does not write failed logins where they may."""
REMOVAL_S = 10.0  # while processes of the lab still die, files may still appear in its folder


def main(what: str, *arguments: str) -> int:
    return host(*arguments) if what == "host" else switch(*arguments)


def switch(folder: str) -> int:
    """A network namespace, and the folder's end."""
    try:
        kernel.unshare(kernel.CLONE_NEWNET)
        without_ipv6()
        tell(f"pid {os.getpid()}", "up 1")
        wait_for_end()
    finally:  # whoever has made the folder may be gone already
        deadline = time.monotonic() + REMOVAL_S
        while os.path.exists(folder) and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.01)
    return 0


def host(name: str, hosts_file: str, *shared: str) -> int:
    """All of a host but its network's addresses and its daemon."""
    kernel.unshare(kernel.HOST)
    child = os.fork()
    if child:
        tell(f"pid {child}")  # as this side counts
        os.close(0)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) & 0xFF
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to process 1; then the kernel buries them
    socket.sethostname(name)
    without_ipv6()
    mounts(name, hosts_file, shared)
    tell("up 1")
    wait_for_end()
    return 0


def mounts(name: str, hosts_file: str, shared: tuple[str, ...]) -> None:
    """The host's own view of the file system."""
    # What lies below a folder that will be covered is kept open, and shown again in the same place.
    kept = {path: os.open(path, os.O_PATH) for path in shared if path.startswith(tuple(f"{own}/" for own in OWN))}
    etc = {"/etc/hosts": Path(hosts_file).read_text(), "/etc/hostname": f"{name}\n"}
    if os.path.exists(SHADOW):
        etc[SHADOW] = with_root_unlocked(Path(SHADOW).read_text())
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    for own in OWN:
        kernel.mount("tmpfs", own, "tmpfs", options="mode=1777" if own != "/run" else "mode=755")
    for path, fd in kept.items():
        os.makedirs(path, exist_ok=True)
        kernel.bind(f"/proc/self/fd/{fd}", path)
        os.close(fd)
    kernel.mount("proc", "/proc", "proc")
    kernel.mount("sysfs", "/sys", "sysfs")
    os.mkdir("/run/sshd")
    os.mkdir("/run/lab")
    boot_id = {"/proc/sys/kernel/random/boot_id": f"{uuid.uuid4()}\n"}
    for path, content in {**etc, **boot_id, **dict.fromkeys(LOGINS, "")}.items():
        mine = Path("/run/lab", os.path.basename(path))
        mine.touch(0o600 if path in PRIVATE else 0o666)
        mine.write_text(content)
        if os.path.exists(path):
            kernel.bind(str(mine), path)


def with_root_unlocked(shadow: str) -> str:
    """The text of /etc/shadow with a root whom sshd lets in by a key: without a password, and without an expiry.

    Without PAM sshd refuses an account whose password begins with "!", as `passwd --lock` and many images have it.
    """
    lines = shadow.splitlines(keepends=True)
    return "".join("root:*:::::::\n" if line.startswith("root:") else line for line in lines)


def without_ipv6() -> None:
    """Else each interface would send packets of its own, which the counters would show."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        for scope in ("all", "default"):
            Path("/proc/sys/net/ipv6/conf", scope, "disable_ipv6").write_text("1")


def tell(*lines: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the lab has been killed: standard input ends too
        os.write(1, "".join(f"{line}\n" for line in lines).encode())


def wait_for_end() -> None:
    while os.read(0, 1):
        continue


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
