"""ringrun on this host: N ranks, by shared memory unless --transport tcp is given."""

from __future__ import annotations

import argparse
import os
import subprocess
from contextlib import ExitStack

from ringreduce.launch.binding import cpu_shares, in_words
from ringreduce.launch.command_line.forwarded import without_places
from ringreduce.launch.command_line.hosts import place_on_one_host
from ringreduce.launch.launch import Launch
from ringreduce.launch.output import Lines, output_pipe
from ringreduce.launch.spawn import new_rendezvous, rank_environment
from ringreduce.launch.supervise import Supervisor


class LocalLaunch(Launch[Supervisor]):
    """One run of ringrun whose ranks all run on this host."""

    def __init__(self, options: argparse.Namespace, prog: str) -> None:
        super().__init__(options, prog, lambda report: Supervisor(options.grace, report, options.verbose, guarded=True))

    def start(self, lines: list[tuple[Lines, Lines]]) -> None:
        """Starts the ranks."""
        options = self.options
        shares = cpu_shares(options.ranks) if options.bind == "core" else [None] * options.ranks
        rendezvous = new_rendezvous()
        self.job.hear(rendezvous)
        base = without_places(os.environ) | options.variables
        if options.transport:
            base["RINGREDUCE_TRANSPORT"] = options.transport
        for rank, cpus in enumerate(shares):
            environ = rank_environment(base, place_on_one_host(rank, options.ranks), rendezvous, cpus)
            with ExitStack() as theirs:  # the ends that only the rank keeps
                of_out, of_err = lines[rank]
                out, stdout = output_pipe(self.out, of_out, theirs)
                err, stderr = output_pipe(self.err, of_err, theirs)
                stdin = self.stdin(theirs) if rank == 0 else subprocess.DEVNULL
                started = self.job.start(options.command, environ, cpus, stdin, stdout, stderr, sources=(out, err))
            if options.verbose:
                bound = in_words(cpus, environ.get("OMP_NUM_THREADS", "unset"))
                self.report(f"rank {rank}: pid {started.pid}, {bound}")
