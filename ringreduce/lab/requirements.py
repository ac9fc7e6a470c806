"""What the lab needs of the machine, asked without leaving anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ringreduce.lab import kernel

TOOLS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
"""Command: Debian's package."""

TRIAL = """
ip link add br0 type bridge && ip link add one type veth peer name two &&
tc qdisc add dev one root tbf rate 1gbit burst 128kb latency 50ms &&
mount -t proc proc /proc && mount -t sysfs sysfs /sys
"""
TRIAL_OF_CABLES = "ip tuntap add dev three mode tap\n"
TRIAL_TIMEOUT_S = 20.0
UID_MAP = Path("/proc/self/uid_map")
"""Of this process's user namespace. A kernel without user namespaces has no such file."""


@cache
def missing(cables: bool = False) -> str | None:
    """Why there can be no lab here, or None. cables: one whose links delay or lose packets."""
    if os.geteuid() != 0:
        return "the lab of several hosts needs root (namespaces)"
    if UID_MAP.exists() and UID_MAP.read_text().split() != ["0", "0", str(2**32 - 1)]:
        return "the lab of several hosts needs the machine's root, not a user namespace's (sshd changes its user)"
    # Where such tools are; a service's PATH may lack it.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    if absent := sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None}):
        return f"the lab of several hosts needs {' '.join(absent)} (apt-get install)"
    try:
        kernel.enter(os.getpid(), kernel.CLONE_NEWUTS)  # its own namespace: nothing changes
    except OSError as error:
        return f"the lab of several hosts needs Linux 5.8, and leave to enter namespaces: {error}"
    parts = "namespaces, bridge, veth, tc tbf and tun" if cables else "namespaces, bridge, veth and tc tbf"
    command = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec"]
    command.append(TRIAL + (TRIAL_OF_CABLES if cables else ""))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"the lab of several hosts needs {parts} of the kernel: the trial took longer than {TRIAL_TIMEOUT_S:g} s"
    if done.returncode != 0:
        return f"the lab of several hosts needs {parts} of the kernel: {done.stderr.strip()}"
    return None
