"""`ringreduce bench`: starts the ranks where there are none yet; as a rank, measures; as rank 0, also prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import ringreduce
from ringreduce.bench import report, table, terminal
from ringreduce.bench.measure import measure
from ringreduce.bench.options import Options, parse
from ringreduce.bench.start import started
from ringreduce.errors import Error
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
        launch = [*options.ringrun, "--bind", options.bind]
        status = started("ringreduce.bench", without_host_options(argv), options.ranks, options.hosts, launch)
        if status is not None:
            return status
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
        cores = report.cores(facts)
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
