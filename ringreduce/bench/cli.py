"""`ringreduce bench`: starts the ranks where there are none yet; as a rank, measures; as rank 0, also prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import numpy as np

import ringreduce
from ringreduce.bench import report, table, terminal
from ringreduce.bench.measure import Row, measure
from ringreduce.bench.memory import check_room
from ringreduce.bench.options import Options, parse
from ringreduce.bench.start import started
from ringreduce.errors import Error


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
        status = started("ringreduce.bench", argv, options.ranks, options.hosts, options.ringrun, options.bind)
        if status is not None:
            return status
        return run(options)
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def run(options: Options) -> int:
    """As one rank of the job: measures all sizes, or as many as anybody reads of. Returns the exit status.

    Raises InvalidArgumentError where --json cannot be written or a size has no room, on all ranks, before anything is
    measured.
    """
    with ringreduce.init():
        report.check_on_first(options.json)
        check_room(options)
        facts = report.meta()
        cores = report.cores(facts)
        rows: list[Row] = []
        is_read = _show(lambda: table.head(options, facts))
        for nbytes in options.sizes:
            rows.append(measure(options, nbytes, cores))
            is_read &= _show(lambda: table.line(options, rows[-1]))
            if not is_read and options.json is None:
                break
        _show(lambda: table.tail(rows))
        is_first = ringreduce.rank() == 0
    if options.json is not None and is_first:
        report.write(options.json, options, facts, rows)
    return 1 if any(row.wrong for row in rows) else 0


def _show(text: Callable[[], str]) -> bool:
    """Collective: rank 0 prints. False on all ranks where the reader of its output has just gone, as `| head` does."""
    has_gone = ringreduce.rank() == 0 and not terminal.shown(text())
    return not ringreduce.allreduce(np.array([has_gone], np.uint8), op=ringreduce.Max)[0]
