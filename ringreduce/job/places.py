"""The places of ranks that have met across hosts, from what each of them has said of itself."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ringreduce import _core, config, plan
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job import rendezvous
from ringreduce.job.environment import Placement

HOST_NAME_CHARS = 64  # Linux's own limit
SETTING_CHARS = 100  # of a knob's value, in a record: more than a right one has
NO_SHARED_MEMORY = ("tcp", "mpi")
"""Values of RINGREDUCE_TRANSPORT with which each rank is a host of its own, whoever is beside it."""
AGREED = ("RINGREDUCE_ALGORITHM", "RINGREDUCE_ENCRYPT", "RINGREDUCE_FUSION_THRESHOLD", "RINGREDUCE_GPU_PATH")
"""Knobs that all ranks must have alike, besides RINGREDUCE_TRANSPORT and the content of RINGREDUCE_PLAN, where they are
on several hosts. By algorithm, threshold and path one rank decides for all. Who asks for encryption expects it of every
connection."""
TCP = ("tcp", "shm+tcp")
"""Values of RINGREDUCE_TRANSPORT that ask for TCP."""


@dataclass(frozen=True)
class TcpWanted:
    """What the user has said of ranks that are connected by TCP, by arguments or variables; "" is nothing."""

    address: str
    secret_file: str
    transport: str
    job: str | None
    secret: bytes = field(default=b"", repr=False)
    """What all ranks know already, instead of a file; of this process, and of no user."""

    @property
    def has_secret(self) -> bool:
        """Whether this rank knows a secret before it meets the others."""
        return bool(self.secret_file or self.secret)


@dataclass(frozen=True)
class PlacedRanks:
    """What a rank knows once all ranks of all hosts have told each other where they are."""

    placement: Placement
    hosts: list[int]
    """By rank: the lowest rank on the same host."""
    address: bytes
    """Where the ranks of this host meet, and their secret."""
    secret: bytes = field(repr=False)


def own_record(rank: int, size: int, transport: str = "auto") -> dict[str, Any]:
    """What this rank says of itself; JSON can carry it. transport: of RINGREDUCE_TRANSPORT."""
    alone = transport in NO_SHARED_MEMORY
    return {
        "rank": rank,
        "host": rendezvous.host_identity().decode() + (f":{rank}" if alone else ""),
        "settings": {"RINGREDUCE_TRANSPORT": transport}
        | {name: setting(name) for name in AGREED}
        | {plan.VARIABLE: plan.wanted().setting},
        "name": os.uname().nodename[:HOST_NAME_CHARS],
        "build": f"{_core.__version__}, control segment {_core.control_nbytes(size)} bytes",
    }


def setting(name: str) -> str:
    """The value of a knob as text, equal where the values are.

    A number that is not set is not equal to one that is: torch's buckets have a size of their own where the fusion
    threshold is not set.
    """
    knob = config.value(name)
    if ".." not in knob.range:
        return knob.value.strip().lower()[:SETTING_CHARS]
    if knob.origin == "default":
        return "not set"
    try:
        return f"{float(knob.value):.0f}"
    except ValueError:
        return knob.value[:SETTING_CHARS]  # init() raises what is wrong with it


def distinct(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first record of each build and settings: what check_agreement() needs, and one of them where all agree."""
    found: dict[str, dict[str, Any]] = {}
    for one in records:
        found.setdefault(json.dumps([one["build"], one["settings"]], sort_keys=True), one)
    return list(found.values())


def check_agreement(records: Sequence[dict[str, Any]], mine: dict[str, Any], size: int, where: str) -> None:
    """Raises InvalidArgumentError when the ranks run different builds, MismatchError when they have other settings.

    Args:
        records: of the job's ranks; distinct() ones suffice.
        mine: this rank's.
        size: ranks of the job.
        where: how the text begins.
    """
    me = f"{where} rank {mine['rank']}/{size}"
    for one in records:
        if one["build"] != mine["build"]:
            raise InvalidArgumentError(
                f"{me}: this rank on {mine['name']} runs ringreduce {mine['build']}, but rank {one['rank']} on "
                f"{one['name']} runs {one['build']}: install one version on all hosts, and give all ranks the same "
                "RINGREDUCE_CACHE_CAPACITY"
            )
        for name, value in mine["settings"].items():
            if (other_value := one["settings"].get(name, "not known")) != value:
                raise MismatchError(
                    f"{me}: {name} is {value} on this rank, on {mine['name']}, and {other_value} on rank "
                    f"{one['rank']}, on {one['name']}: give all ranks the same. Open MPI takes a variable to other "
                    f"hosts only when told: mpirun -x {variable(name)}"
                )


def variable(name: str) -> str:
    """Where this rank has a knob's value from: the variable itself, or Horovod's for the same."""
    origin = config.value(name).origin
    return name if origin == "default" else origin


def host_labels(records: Sequence[dict[str, Any]]) -> list[int]:
    """By rank: the lowest rank on the same host."""
    first: dict[str, int] = {}
    return [first.setdefault(one["host"], rank) for rank, one in enumerate(records)]


def placement(hosts: Sequence[int], rank: int, source: str) -> Placement:
    """The place of a rank among ranks on these hosts."""
    here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    local_rank = here.index(rank)
    across = [host for host, ranks in sorted(Counter(hosts).items()) if ranks > local_rank]
    return Placement(rank, len(hosts), local_rank, len(here), across.index(hosts[rank]), len(across), source, "")
