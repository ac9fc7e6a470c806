"""`ringreduce doctor -H`: starts a rank of probe.py on each host, by ringrun, and makes findings of what they say."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

from ringreduce import config
from ringreduce.bench.pair import pairs
from ringreduce.doctor import network
from ringreduce.doctor.finding import Finding
from ringreduce.doctor.probe import CALL_S, MEET_S
from ringreduce.launch.command_line.host_options import host_list, ringrun_words
from ringreduce.launch.command_line.hosts import THIS_HOST, Host, is_this_host
from ringreduce.launch.python import run_module


def findings(args: argparse.Namespace) -> Iterator[Finding]:
    """Hosts first, then each pair. Raises InvalidArgumentError for a list that is none."""
    named = {THIS_HOST if is_this_host(host.name) else host.name: host.name for host in reversed(host_list(args))}
    names = list(reversed(named.values()))
    hosts = [Host(name, 1) for name in names]
    launch = ["-np", str(len(names)), *ringrun_words(args, hosts), "--bind", "none", "--no-tag-output"]
    command = run_module("ringreduce.launch.ringrun", *launch, *run_module("ringreduce.doctor.probe"))
    limit_s = _start_s() + 2 * MEET_S + CALL_S * len(pairs(len(names)))
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            check=False,
        )
        output, errors, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, errors = (part.decode(errors="replace") if part else "" for part in (error.stdout, error.stderr))
        errors, status = f"{errors}\nringrun: it has not ended within {limit_s:.0f} s", 1
    yield from _of_output(names, output, errors, status)


def _start_s() -> float:
    """How long ringrun waits for the hosts, and a moment for it to end."""
    return config.seconds("RINGREDUCE_INIT_TIMEOUT") + 30.0


def _of_output(names: list[str], output: str, errors: str, status: int) -> Iterator[Finding]:
    facts: dict[int, dict[str, Any]] = {}
    measured: list[dict[str, Any]] = []
    problems: dict[int, dict[str, Any]] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line[max(0, line.find("{")) :])  # a login shell may have written into the line
        except ValueError:  # what a host's Python prints at its start
            continue
        if isinstance(said, dict) and "facts" in said:
            facts[said["rank"]] = said["facts"]
        elif isinstance(said, dict) and "pairs" in said:
            measured = said["pairs"]
        elif isinstance(said, dict) and "problem" in said:
            problems[said["rank"]] = said
    found = [*network.of_hosts(names, facts)]
    for rank, said in sorted(problems.items()):
        hint = network.FILTER if said.get("filtered") else network.MEETING
        found.append(Finding("network", names[rank], said["problem"], "problem", hint))
    found += network.of_pairs(names, facts, measured)
    yield from found
    if status == 0 and len(facts) == len(names):
        return
    told = [line.removeprefix("ringrun: ") for line in errors.splitlines() if line.startswith("ringrun: ")]
    for line in told or [errors.strip()[-500:] or "a probe has said nothing"]:
        where = re.match(r"host (\S+): ", line)
        yield Finding("start", where[1] if where else "ringrun", line[where.end() :] if where else line, "problem")
