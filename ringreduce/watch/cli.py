"""`ringreduce top`: the ranks of the running jobs of this host, what they do, and who waits for whom."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.exit_on_signal import exit_on_signal
from ringreduce.watch import table
from ringreduce.watch.board import Board

ONCE_S = 1.0
"""`--once` takes two looks so far apart: rates need two."""

TERMINAL_S = 0.25
PROMETHEUS_S = 5.0

LEAST_S = 0.05
"""Jobs are sampled so often (csrc/engine/late/wait_sampler.cc); looking more often shows nothing new."""

MOST_S = 3600.0


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0; 1 where no job runs; 2 where none can be read, or an option is wrong."""
    options = _options(argv)
    try:
        with exit_on_signal():
            return _run(options)
    except Error as error:
        print(f"ringreduce top: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise  # of the output: the command ends without a word
    except OSError as error:
        print(f"ringreduce top: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _run(options: argparse.Namespace) -> int:
    board = Board(options.process)
    if options.web is not None:
        from ringreduce.watch import web

        return web.serve(board, options.web, options.interval or TERMINAL_S)
    if options.prometheus is not None:
        from ringreduce.watch import prometheus

        return prometheus.write_again_and_again(board, options.prometheus, options.interval or PROMETHEUS_S)
    if options.once:
        return _once(board, options)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidArgumentError("this is no terminal: give --once, --web or --prometheus FILE")
    from ringreduce.watch import terminal

    return terminal.show(board, options.interval or TERMINAL_S)


def _once(board: Board, options: argparse.Namespace) -> int:
    board.look()
    if board.jobs:
        time.sleep(options.interval or ONCE_S)
    jobs = board.look()
    if options.json:
        print(json.dumps({"jobs": [job.as_json() for job in jobs]}, indent=1))
    else:
        none = "" if board.unreadable else "no job of yours runs on this host"
        print("\n\n".join("\n".join(table.lines(job)) for job in jobs) or none)
    for why in board.unreadable:
        print(f"ringreduce top: {why}", file=sys.stderr)
    if jobs:
        return 0
    return 2 if board.unreadable else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ringreduce top", description=__doc__)
    parser.add_argument(
        "process",
        type=int,
        nargs="?",
        metavar="PID",
        help="only the job of this rank, or that this launcher has started",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="print one table and end")
    how.add_argument(
        "--web",
        type=_port,
        nargs="?",
        const=0,
        metavar="PORT",
        help="show a page with a chart to browsers on this host; its address is printed",
    )
    how.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="write FILE every 5 s, for the textfile collector of Prometheus' node_exporter",
    )
    parser.add_argument("--json", action="store_true", help="with --once: as JSON")
    parser.add_argument(
        "--interval",
        type=_seconds,
        metavar="SECONDS",
        help="between two looks (default: 0.25; --once: 1; --prometheus: 5)",
    )
    return parser


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.json and not options.once:
        parser.error("--json needs --once")
    return options


def _port(text: str) -> int:
    if text.isdecimal() and 0 <= int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text}: a port is a number from 0 (any) to 65535")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if LEAST_S <= seconds <= MOST_S:
        return seconds
    raise argparse.ArgumentTypeError(f"{text}: from {LEAST_S} to {MOST_S:.0f} seconds")
