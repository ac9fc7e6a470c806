"""The command: gathers the findings, tests, prints, and turns problems into the exit status."""

from __future__ import annotations

import argparse
import json
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain

from ringreduce.doctor import environment, gpus, hosts, selftest, software
from ringreduce.doctor.finding import Finding, lines, verdict
from ringreduce.errors import Error
from ringreduce.job.own_place import own_place
from ringreduce.launch.command_line.host_options import add_host_options, host_list


def main(argv: Sequence[str]) -> int:
    """Runs the command. Returns 0, or 1 when there is a problem; under a launcher, on every rank. 2: bad arguments."""
    parser = argparse.ArgumentParser(
        prog="ringreduce doctor",
        description="Reports what ringreduce finds here and lets two ranks add; with -H what it finds on hosts and "
        "between them. Exit status 1 when something is wrong.",
    )
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    parser.add_argument("--self-test", action="store_true", help=argparse.SUPPRESS)  # one rank of the self-test
    add_host_options(parser, "look at these hosts and the network between them: a,b")
    args = parser.parse_args(argv)
    if args.self_test:
        return selftest.as_rank()
    try:
        if host_list(args):
            return _report(list(hosts.findings(args)), args.json)
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2

    findings = list(
        chain(
            software.package(),
            software.mpi(),
            software.mpi_cuda(),
            gpus.cuda(),
            software.frameworks(),
            environment.hardware(),
            environment.knobs(),
            environment.launcher(),
        )
    )
    leads, tells_of_host = _part()
    misplaced = any(finding.status == "problem" and finding.topic != "frameworks" for finding in findings)
    findings += _tested(misplaced)  # it needs no framework
    problems = [finding for finding in findings if finding.status == "problem"]
    if tells_of_host and not leads and problems:  # what rank 0 has found on its own host is another matter
        print("\n".join([f"on {socket.gethostname()}:", *lines(problems)]), file=sys.stderr)
    return _report(findings, args.json) if leads else int(bool(problems))


def _report(findings: Sequence[Finding], as_json: bool) -> int:
    """Prints. Returns the exit status."""
    healthy = all(finding.status != "problem" for finding in findings)
    if as_json:
        print(json.dumps({"ok": healthy, "findings": [asdict(finding) for finding in findings]}, indent=1))
    else:
        print("\n".join([*lines(findings), "", verdict(findings)]))
    return 0 if healthy else 1


def _part() -> tuple[bool, bool]:
    """Whether this rank reports, as all do where that cannot be told; and whether it tells of problems of its host."""
    try:
        place = own_place()
    except Error:
        return True, False
    return place.rank == 0, place.local_rank == 0


def _tested(misplaced: bool) -> Iterator[Finding]:
    """The self-test, on the launcher's ranks where there are any."""
    if misplaced:
        yield Finding("self-test", "allreduce", "not run, see above")
        return
    launched = own_place().source != "single"
    try:
        result = selftest.on_this_job() if launched else selftest.on_own_ranks()
    except Error as error:
        yield Finding("self-test", "allreduce", f"{type(error).__name__}: {error}", "problem")
        return
    except selftest.Failed as failure:
        yield Finding("self-test", "allreduce", str(failure), "problem")
        return
    if launched:
        told = sorted(set(result["sizes"]))
        fits = told == [result["ranks"]]
        said = f"{result['ranks']} ranks; the launcher says {' and '.join(map(str, told))}"
        hint = "" if fits else "launcher and group disagree: start the job with one launcher, and only once"
        yield Finding("self-test", "group", said, "ok" if fits else "problem", hint)
    right = f"{result['ranks']} ranks, {result['results']} elements, {result['wrong']} wrong, {result['seconds']:.2f} s"
    yield Finding("self-test", "allreduce", right, "problem" if result["wrong"] else "ok")
