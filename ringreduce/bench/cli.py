"""`ringreduce bench`: starts the ranks where there are none yet; as a rank, measures; as rank 0, also prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import ringreduce
from ringreduce import state
from ringreduce.bench import report, table, terminal
from ringreduce.bench.measure import measure
from ringreduce.bench.options import DEFAULT_RANKS, Options, parse
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.job import environment
from ringreduce.launch.host_options import without_host_options


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0; 1 when a result was wrong; 2 when the arguments ask for what there is not."""
    if argv[:1] == ["train"]:
        from ringreduce.bench.train import cli as train

        return train.main(argv[1:])
    try:
        options = parse(argv)
        if options.vs:
            from ringreduce.bench import versus

            return versus.run(options)
        place = environment.detect(network=True)
        if options.hosts and place.source != "single":
            raise InvalidArgumentError(f"-H inside a job of {place.size} ranks ({place.source})")
        if place.source == "single" and (options.ranks != 1 or options.hosts):
            return _start(options, without_host_options(argv))
        if options.ranks not in (None, place.size):
            raise InvalidArgumentError(f"-np {options.ranks} inside a job of {place.size} ranks ({place.source})")
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return run(options)


def run(options: Options) -> int:
    """As one rank of the job: measures all sizes. Returns the exit status."""
    with ringreduce.init():
        facts = report.meta()
        prints = ringreduce.rank() == 0
        if prints:
            terminal.show(table.head(options, facts))
        hosts = state.require().hosts
        cores = len({(host, core) for host, bound in zip(hosts, facts["binding"], strict=True) for core in bound})
        rows = []
        for nbytes in options.sizes:
            rows.append(measure(options, nbytes, cores))
            if prints:
                terminal.show(table.line(options, rows[-1]))
        if prints:
            terminal.show(table.tail(rows))
            if options.json:
                report.write(options.json, options, facts, rows)
    return 1 if any(row.wrong for row in rows) else 0


def _start(options: Options, argv: Sequence[str]) -> int:
    """The same command again, on ranks of its own."""
    from ringreduce.launch import ringrun
    from ringreduce.launch.python import run_module

    ranks = str(options.ranks or DEFAULT_RANKS)
    if terminal.coloured(sys.stdout):
        os.environ["FORCE_COLOR"] = "1"  # what a rank prints comes here through a pipe
    launch = ["-np", ranks, *options.ringrun, "--bind", options.bind, "--no-tag-output"]
    return ringrun.main([*launch, *run_module("ringreduce.bench", *argv, "-np", ranks)])
