"""`ringreduce timeline`: merges the record files of all ranks for a viewer, or reports what they show."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.timeline import wording
from ringreduce.timeline.clocks import UNKNOWN_NS
from ringreduce.timeline.export import chrome, horovod, perfetto
from ringreduce.timeline.job import Job
from ringreduce.timeline.record_file import RANKS_SUFFIX

_WRITERS: dict[str, Callable[[Job, Path], None]] = {".json": chrome.write, ".pftrace": perfetto.write}


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0; 2 where the records cannot be read or a file cannot be written."""
    options = _parser().parse_args(argv)
    try:
        job = Job.load(records_folder(options.folder))
        if options.command is not _report or options.json:  # the report itself has them
            for warning in job.warnings:
                print(f"warning: {wording.warning(warning)}", file=sys.stderr)
        command: Callable[[Job, argparse.Namespace], None] = options.command
        command(job, options)
    except Error as error:
        print(f"ringreduce timeline: {error}", file=sys.stderr)
        return 2
    return 0


def records_folder(given: Path) -> Path:
    """The folder of the record files: the one that is given, or that of a timeline's JSON file."""
    if given.is_dir():
        return given
    beside = given.with_name(given.name + RANKS_SUFFIX)
    if beside.is_dir():
        return beside
    raise InvalidArgumentError(f"{given}: neither a folder nor a timeline with a folder {beside.name} beside it")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ringreduce timeline", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="merge | report")
    merge = commands.add_parser(
        "merge", help="write one file for a viewer", description="Writes one file for a viewer."
    )
    merge.set_defaults(command=_merge)
    _add_folder(merge)
    merge.add_argument(
        "-o",
        "--output",
        type=_viewer_file,
        metavar="FILE",
        help="FILE.json for ui.perfetto.dev and chrome://tracing, or FILE.pftrace: smaller, for ui.perfetto.dev",
    )
    merge.add_argument("--horovod", type=Path, metavar="FILE", help="in the form of Horovod's timeline")
    merge.add_argument("--mark-cycles", action="store_true", help="with --horovod: mark where each bucket starts")
    report = commands.add_parser("report", help="say who was late and what took long")
    report.set_defaults(command=_report)
    _add_folder(report)
    report.add_argument("--json", action="store_true", help="as JSON")
    report.add_argument("--html", type=Path, metavar="FILE", help="as a page with drawings, too")
    return parser


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the ranks wrote their records")


def _viewer_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _WRITERS:
        raise argparse.ArgumentTypeError(f"{text}: give a name that ends in {' or '.join(_WRITERS)}")
    return path


def _merge(job: Job, options: argparse.Namespace) -> None:
    if options.output is None and options.horovod is None:
        raise InvalidArgumentError("merge: give -o FILE.json, -o FILE.pftrace or --horovod FILE")
    if options.mark_cycles and options.horovod is None:
        raise InvalidArgumentError("merge: --mark-cycles needs --horovod FILE")
    if options.output is not None:
        _WRITERS[options.output.suffix](job, options.output)
        print(_written(job, options.output))
    if options.horovod is not None:
        horovod.write(job, options.horovod, options.mark_cycles)
        print(_written(job, options.horovod))


def _report(job: Job, options: argparse.Namespace) -> None:
    from ringreduce.timeline import page, report
    from ringreduce.timeline.analysis.found import analyse
    from ringreduce.timeline.report_json import as_json

    found = analyse(job)
    if options.html is not None:
        page.write(found, options.html)
        print(_written(job, options.html), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(as_json(found), indent=1))
    else:
        print(report.text(found))


def _written(job: Job, path: Path) -> str:
    """One line: what the file holds, and how well the ranks' clocks agree."""
    error_ns = job.clock_error_ns
    if error_ns == UNKNOWN_NS:
        clocks = "clocks by the hosts' wall clocks"
    else:
        clocks = "one clock" if error_ns == 0 else f"clocks within {error_ns / 1e3:.1f} us"
    return f"{path}: {len(job.operations)} operations, {len(job.files)} of {job.files[0].size} ranks, {clocks}"
