"""A shell, or one command, on the first host of a lab: python -m tests.lab --hosts 2 --rate 1gbit [COMMAND...]."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lab.lab import Lab
from lab.mpi import settings
from lab.requirements import missing


def main() -> int:
    """Returns the command's exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab", description="Hosts in one machine, with ssh and mpirun."
    )
    parser.add_argument("--hosts", type=int, default=2, metavar="N", help="how many: a, b, c, ... (default 2)")
    parser.add_argument(
        "--rate", default="1gbit", help="of each link, as tc spells it; none = not shaped (default 1gbit)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run on host a (default: a shell)")
    options = parser.parse_args()
    if (reason := missing()) is not None:
        print(reason, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with Lab(options.hosts, None if options.rate == "none" else options.rate) as lab:
        env = {**settings(lab.ssh), "LAB_SSH": str(lab.ssh), "LAB_FOLDER": str(lab.folder), "PS1": r"\u@\h:\w# "}
        print(
            f"# hosts {' '.join(lab.hosts)}; $LAB_SSH HOST COMMAND reaches them; files for all in $LAB_FOLDER",
            file=sys.stderr,
        )
        before = lab.counters()
        command = options.command or [os.environ.get("SHELL", "/bin/sh")]
        with lab.start(lab.hosts[0], command, env=env, stdin=None, output=None) as process:
            status = process.wait()
        print(f"# carried: {lab.counters() - before}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
