"""The ringrun command: starts N ranks of a program on this host and sees them through; options.py has its contract.

With --transport mpi it hands over to an mpirun (mpirun.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from ringreduce import compat
from ringreduce.errors import Error
from ringreduce.launch import options as command_line
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.output import Copies, Sink, output_pipe, rank_copies, rank_lines
from ringreduce.launch.spawn import new_rendezvous, rank_environment
from ringreduce.launch.supervise import Supervisor
from ringreduce.launch.terminal import Keyboard, signals_as_events

USAGE_STATUS = 2
CANNOT_RUN_STATUS = 126
NOT_FOUND_STATUS = 127
STDIN, STDOUT, STDERR = 0, 1, 2


def main(argv: Sequence[str] | None = None, prog: str = "ringrun") -> int:
    """Runs the command line; returns the exit status."""
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
    return Launch(options, prog).run()


def _mpirun(options: argparse.Namespace, prog: str) -> int:
    from ringreduce.launch import mpirun  # with what it needs to look for one

    try:
        return mpirun.run(options, prog)
    except Error as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return USAGE_STATUS
    except OSError as error:
        sys.stderr.write(f"{prog}: cannot run mpirun: {error}\n")
        return CANNOT_RUN_STATUS


class Launch:
    """One run of ringrun."""

    def __init__(self, options: argparse.Namespace, prog: str) -> None:
        self._options = options
        self._prog = prog
        self._job = Supervisor(options.grace, self._report, options.verbose)
        self._out = Sink(STDOUT, self._job.selector)
        # `2>&1`: one queue for both, so that lines of the two neither mix nor change places.
        self._err = self._out if os.path.sameopenfile(STDOUT, STDERR) else Sink(STDERR, self._job.selector)
        self._job.sinks += [self._out, self._err]
        self._keyboard: Keyboard | None = None
        self._interrupted = False

    def run(self) -> int:
        """Starts the ranks and waits for the last to end. Returns the exit status."""
        with ExitStack() as files, self._job, signals_as_events(self._job.selector, self._on_signal):
            try:
                copies = rank_copies(self._options.output_filename, self._options.ranks, self._report, files)
            except OSError as error:
                self._report(f"--output-filename {self._options.output_filename}: {error}")
                return USAGE_STATUS
            try:
                try:
                    self._start(copies)
                except OSError as error:
                    self._report(f"cannot run {self._options.command[0]!r}: {error.strerror}")
                    return NOT_FOUND_STATUS if isinstance(error, FileNotFoundError) else CANNOT_RUN_STATUS
                self._job.run()
            finally:
                if self._keyboard is not None:
                    self._keyboard.close()
        return self._job.exit_status()

    def _start(self, copies: Copies) -> None:
        options = self._options
        tagged = self._out.terminal if options.tag_output is None else options.tag_output
        shares = cpu_shares(options.ranks) if options.bind == "core" else [None] * options.ranks
        rendezvous = new_rendezvous()
        self._job.hear(rendezvous)
        base = os.environ | options.variables
        if options.transport:
            base["RINGREDUCE_TRANSPORT"] = options.transport
        for rank, cpus in enumerate(shares):
            environ = rank_environment(base, rank, options.ranks, rendezvous, cpus)
            with ExitStack() as theirs:  # the ends that only the rank keeps
                out_lines, err_lines = rank_lines(rank, self._out, self._err, tagged, copies[rank])
                out, stdout = output_pipe(self._out, out_lines, theirs)
                err, stderr = output_pipe(self._err, err_lines, theirs)
                stdin = self._stdin(theirs) if rank == 0 else subprocess.DEVNULL
                started = self._job.start(options.command, environ, cpus, stdin, stdout, stderr, sources=(out, err))
            if options.verbose:
                cores = "not bound" if cpus is None else f"on CPU {', '.join(map(str, sorted(cpus)))}"
                threads = environ.get("OMP_NUM_THREADS", "unset")
                self._report(f"rank {rank}: pid {started.pid}, {cores}, OMP_NUM_THREADS {threads}")

    def _stdin(self, theirs: ExitStack) -> int:
        """What rank 0 reads: our own input, by way of a pipe if it is a terminal."""
        try:
            os.fstat(STDIN)
        except OSError:  # closed
            return subprocess.DEVNULL
        if not os.isatty(STDIN):
            return STDIN
        reader, writer = os.pipe2(os.O_CLOEXEC)
        theirs.callback(os.close, reader)
        self._keyboard = Keyboard(STDIN, writer, self._job.selector)
        return reader

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if signum == signal.SIGCONT:
            if self._keyboard is not None:
                self._keyboard.resume()
            return
        insistent = signum in (signal.SIGINT, signal.SIGTERM)  # SIGHUP may come twice: from the kernel and the shell
        if insistent and self._interrupted:
            self._report(f"{name} again: killing all ranks")
            self._job.stop_now()
            return
        self._interrupted |= insistent
        self._report(f"{name}: passing it on to all ranks")
        self._job.pass_on(signum)

    def _report(self, line: str) -> None:
        self._err.put(f"{self._prog}: {line}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
