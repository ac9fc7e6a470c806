"""The JSON file of `ringreduce bench`: {"meta": {...}, "results": [...]}, one result per size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ringreduce
from ringreduce import config, state
from ringreduce.bench import machine
from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.collective_json import allgather_json
from ringreduce.timeline.whole_file import check_writable, whole_file

if TYPE_CHECKING:
    from ringreduce.bench.measure import Row
    from ringreduce.bench.options import Options


def meta() -> dict[str, Any]:
    """Facts about machine, versions, knobs and binding. Collective."""
    group = ringreduce.global_process_set.group
    given = [knob for knob in config.describe() if knob.origin != "default"]
    knobs = {knob.name: knob.value for knob in given if knob.name != "RINGREDUCE_RENDEZVOUS"}  # another in each job
    binding = allgather_json(group, "bench.binding", machine.allowed_cores())
    hosts = len(set(state.require().hosts))
    return {**machine.facts(), "knobs": knobs, "ranks": group.size, "hosts": hosts, "binding": binding}


def cores(facts: dict[str, Any]) -> int:
    """How many cores the ranks share, on all hosts. facts: of meta()."""
    hosts = state.require().hosts
    return len({(host, core) for host, bound in zip(hosts, facts["binding"], strict=True) for core in bound})


def result(options: Options, row: Row, ranks: int) -> dict[str, Any]:
    """One entry of "results"."""
    return {
        "library": "ringreduce",
        "version": ringreduce.__version__,
        "level": options.level,
        "collective": options.collective,
        "ranks": ranks,
        "nbytes": row.nbytes,
        "count": row.count,
        "dtype": options.dtype,
        "op": options.op if COLLECTIVES[options.collective].reduces else None,
        "in_place": row.in_place,
        "buffers": options.buffers,
        "algorithm": row.algorithm,
        "time_us": {"min": row.min_us, "p50": row.p50_us, "p99": row.p99_us},
        "algbw_GBps": row.algbw_GBps,
        "busbw_GBps": row.busbw_GBps,
        "wrong": row.wrong,
        "fraction_of_limit": row.fraction_of_limit,
    }


def check(path: str | None) -> None:
    """Whether save() can write this file, said before anything is measured; None: nothing is to be written.

    Raises InvalidArgumentError.
    """
    if path is not None and path != "-":
        check_writable(Path(path))


def check_on_first(path: str | None) -> None:
    """check() on rank 0, which writes. Collective: raises InvalidArgumentError on all ranks."""
    problem = ""
    if ringreduce.rank() == 0:
        try:
            check(path)
        except InvalidArgumentError as error:
            problem = str(error)
    problem = allgather_json(ringreduce.global_process_set.group, "bench.output", problem)[0]
    if problem:
        raise InvalidArgumentError(problem)


def write(path: str, options: Options, facts: dict[str, Any], rows: Sequence[Row]) -> None:
    """save() of the results, after the last one."""
    results = [result(options, row, facts["ranks"]) for row in rows]
    save(path, {"meta": {**facts, **machine.facts_after()}, "results": results})


def save(path: str, document: dict[str, Any]) -> None:
    """Writes a file of JSON; "-" is a line of standard output. Raises InvalidArgumentError where it cannot."""
    if path == "-":
        print(json.dumps(document), flush=True)
    else:
        with whole_file(Path(path)) as file:
            file.write(f"{json.dumps(document, indent=1)}\n".encode())
