"""The ringrun command: starts N ranks of a program and sees them through. Its contract: command_line/options.py.

Ranks on this host alone are local.py's, ranks on several hosts remote/'s. With --transport mpi it hands over to an
mpirun (mpirun.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from ringreduce import compat
from ringreduce.errors import Error
from ringreduce.launch.command_line import options as command_line
from ringreduce.launch.launch import CANNOT_RUN_STATUS, STDERR, STDIN, STDOUT, USAGE_STATUS
from ringreduce.launch.local import LocalLaunch
from ringreduce.launch.spawn import many_files


def main(argv: Sequence[str] | None = None, prog: str = "ringrun") -> int:
    """Runs the command line; returns the exit status."""
    _open_closed_streams()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started this may ignore it: no child's status would be kept
    try:
        options = command_line.read(argv, prog)
    except Error as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return USAGE_STATUS
    if options.check_build:
        from ringreduce import doctor

        return doctor.main([])
    if options.version:
        import ringreduce

        sys.stdout.write(f"{prog} {ringreduce.__version__}\n")
        return 0
    if options.unused:
        sys.stderr.write(f"{prog}: without effect here: {', '.join(options.unused)}\n")
    if options.as_horovod:
        compat.switch_on(os.environ)
    if options.transport == "mpi":
        return _mpirun(options, prog)
    with many_files():
        return _remote(options, prog) if options.spans_hosts else LocalLaunch(options, prog).run()


def _open_closed_streams() -> None:
    """Opens /dev/null where this process has no input or output (`>&-`): a later descriptor would have its number."""
    for stream in (STDIN, STDOUT, STDERR):
        try:
            os.fstat(stream)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the least free number, which is this one


def _remote(options: argparse.Namespace, prog: str) -> int:
    from ringreduce.launch.remote.launch import RemoteLaunch  # most runs need none of it

    try:
        launch = RemoteLaunch(options, prog)
    except Error as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return USAGE_STATUS
    return launch.run()


def _mpirun(options: argparse.Namespace, prog: str) -> int:
    from ringreduce.launch.mpi import mpirun  # with what it needs to look for one

    try:
        return mpirun.run(options, prog)
    except Error as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return USAGE_STATUS
    except OSError as error:
        sys.stderr.write(f"{prog}: cannot run mpirun: {error}\n")
        return CANNOT_RUN_STATUS


if __name__ == "__main__":
    sys.exit(main())
