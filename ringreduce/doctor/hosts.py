"""`ringreduce doctor -H`: starts a rank of probe.py on each host, by ringrun, and makes findings of what they say."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from ringreduce.bench.pair import pairs
from ringreduce.doctor import network
from ringreduce.doctor.finding import Finding
from ringreduce.doctor.probe import MEET_S, PAIR_S
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch.host_options import host_list, ringrun_words
from ringreduce.launch.hosts import Host
from ringreduce.launch.python import run_module

START_S = 90.0  # ringrun's own limit is RINGREDUCE_INIT_TIMEOUT, 60 s


def findings(args: argparse.Namespace) -> Iterator[Finding]:
    """Hosts first, then each pair. Raises InvalidArgumentError for a list that is none."""
    hosts = [Host(host.name, 1) for host in host_list(args)]
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise InvalidArgumentError("doctor -H: a host is named twice")
    launch = ["-np", str(len(names)), *ringrun_words(args, hosts), "--bind", "none", "--no-tag-output"]
    command = run_module("ringreduce.launch.ringrun", *launch, *run_module("ringreduce.doctor.probe"))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=START_S + MEET_S + PAIR_S * len(pairs(len(names))),
            check=False,
        )
        output, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        output, errors = (part.decode(errors="replace") if part else "" for part in (error.stdout, error.stderr))
        errors += "\nringrun: it has not ended in time"
    yield from _of_output(names, output, errors)


def _of_output(names: list[str], output: str, errors: str) -> Iterator[Finding]:
    facts: dict[int, dict[str, Any]] = {}
    measured: list[dict[str, Any]] | None = None
    problems: dict[int, str] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:  # what a host's Python prints at its start
            continue
        if isinstance(said, dict) and "facts" in said:
            facts[said["rank"]] = said["facts"]
        elif isinstance(said, dict) and "pairs" in said:
            measured = said["pairs"]
        elif isinstance(said, dict) and "problem" in said:
            problems[said["rank"]] = said["problem"]
    yield from network.of_hosts(names, facts)
    for rank, text in sorted(problems.items()):
        yield Finding("network", names[rank], text, "problem")
    if measured is not None:
        yield from network.of_pairs(names, facts, measured)
    elif len(names) > 1 and not problems:
        said = [line.removeprefix("ringrun: ") for line in errors.splitlines() if line.startswith("ringrun: ")]
        for line in said or [errors.strip()[-500:] or "the probe has said nothing"]:
            where = re.match(r"host (\S+): ", line)
            yield Finding("start", where[1] if where else "ringrun", line[where.end() :] if where else line, "problem")
