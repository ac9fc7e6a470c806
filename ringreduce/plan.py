"""Plan files: the sizes that `ringreduce tune` has measured for a job's ranks and hosts, for RINGREDUCE_PLAN.

A plan is a file of JSON. Its hash is over all that it says, so ranks with the same hash have the same file; init()
raises MismatchError where they have not. The sizes change when things happen, never what a sum is.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ringreduce import _core, config
from ringreduce.errors import InvalidArgumentError

VARIABLE = "RINGREDUCE_PLAN"
FORMAT = 1
FILE_NBYTES = 1 << 20  # at most
HASH_CHARS = 16  # 64 bits in hexadecimal
CHUNK_NBYTES = range(4096, (1 << 20) + 1, 64)
"""As in csrc/negotiation/segment/control_segment.h."""
EAGER_NBYTES = range(1, (16 << 10) + 1)
"""On one host. On several the limit is 0, the default: what is eager does without the codecs of `wire=`."""


@dataclass(frozen=True)
class Plan:
    """What a plan file says.

    Attributes:
        ranks: of each host, in the order of their lowest rank.
        processors: of each host, as processor() names them.
        chunk_nbytes: of the staging area within a host.
        eager_nbytes: the largest message that ends from the request slots; 0 on several hosts: as it always is.
        measured: what the sizes were chosen by, for people to read.
        format: of the file.
    """

    ranks: tuple[int, ...]
    processors: tuple[str, ...]
    chunk_nbytes: int
    eager_nbytes: int
    measured: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def hash(self) -> str:
        """Of all the others, HASH_CHARS hexadecimal digits."""
        import hashlib  # loads OpenSSL, 4 ms, for jobs with a plan only

        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]

    def text(self) -> str:
        """The file."""
        return json.dumps({"hash": self.hash, **asdict(self)}, indent=1) + "\n"

    def fits(self, hosts: Sequence[int]) -> bool:
        """Whether a job has these ranks on so many hosts. hosts: by rank, equal on the same host."""
        return ranks_by_host(hosts) == self.ranks

    def core(self) -> _core.TuningPlan:
        """What a Context takes."""
        return _core.TuningPlan(int(self.hash, 16) or 1, self.chunk_nbytes, self.eager_nbytes)


def of_environment() -> Plan | None:
    """The plan that RINGREDUCE_PLAN names; None where it is not set. Raises InvalidArgumentError for a bad file."""
    path = config.value(VARIABLE).value
    return read(path) if path else None


def for_job(plan: Plan | None, hosts: Sequence[int]) -> _core.TuningPlan:
    """What the job's Context takes. hosts: by rank, equal on the same host.

    Raises:
        InvalidArgumentError: the plan was measured for other numbers of ranks or hosts.
    """
    if plan is None:
        return _core.TuningPlan()
    if not plan.fits(hosts):
        raise InvalidArgumentError(
            f"{VARIABLE}={config.value(VARIABLE).value}: was measured for {layout(plan.ranks)}, and this job has "
            f"{layout(ranks_by_host(hosts))}: run `ringreduce tune` for it, or unset {VARIABLE}"
        )
    return plan.core()


def for_group(plan: Plan | None, hosts: Sequence[int]) -> _core.TuningPlan:
    """The same for a group of some of a job's ranks: it goes without where the plan was measured for others."""
    return plan.core() if plan is not None and plan.fits(hosts) else _core.TuningPlan()


def warn_of_processor(plan: Plan | None) -> None:
    """Warns where this host has a processor on which the plan was not measured."""
    if plan is None or processor() in plan.processors:
        return
    text = (
        f"{VARIABLE}={config.value(VARIABLE).value}: was measured on {' and '.join(sorted(set(plan.processors)))}, and "
        f"{os.uname().nodename} has {processor()}: its sizes may not be the best here; run `ringreduce tune` again"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=config.users_level())


def read(path: str) -> Plan:
    """A plan file. Raises InvalidArgumentError that says what is wrong with it."""
    name = os.path.expanduser(path)
    if not os.path.isfile(name):
        raise InvalidArgumentError(f"{VARIABLE}={path}: no such file, or no regular one")
    try:
        with open(name, "rb") as file:
            data = file.read(FILE_NBYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{VARIABLE}={path}: cannot be read: {error.strerror}") from error
    try:
        if len(data) > FILE_NBYTES:
            raise ValueError(f"has more than {FILE_NBYTES} bytes")
        return _checked(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{VARIABLE}={path}: is no plan of `ringreduce tune`: {error}; run it again, or unset {VARIABLE}"
        ) from error


def ranks_by_host(hosts: Sequence[int]) -> tuple[int, ...]:
    """Ranks of each host, in the order of their lowest rank.

    >>> ranks_by_host([0, 0, 2])
    (2, 1)
    """
    return tuple(Counter(hosts).values())


def layout(ranks: Sequence[int]) -> str:
    """Ranks of each host in words.

    >>> layout([4]), layout([1]), layout([2, 2, 2]), layout([2, 1])
    ('4 ranks on one host', '1 rank on one host', '2 ranks on each of 3 hosts', '2 + 1 ranks on 2 hosts')
    """
    if len(ranks) == 1:
        return f"{ranks[0]} rank{'' if ranks[0] == 1 else 's'} on one host"
    if len(set(ranks)) == 1:
        return f"{ranks[0]} rank{'' if ranks[0] == 1 else 's'} on each of {len(ranks)} hosts"
    return f"{' + '.join(map(str, ranks))} ranks on {len(ranks)} hosts"


def processor() -> str:
    """The processor's name, as the kernel gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            head = file.read(4096)  # of the first core; the whole takes 10 ms where there are many
    except OSError:
        head = ""
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", head, re.MULTILINE)
    return found[1].strip() if found else os.uname().machine


def _checked(document: Any) -> Plan:
    if not isinstance(document, dict) or "format" not in document:
        raise ValueError("it says no format")
    if document["format"] != FORMAT:
        raise ValueError(f"it has format {document['format']!r:.20}, and this ringreduce reads {FORMAT}")
    fields = {"hash", *Plan.__dataclass_fields__}
    if document.keys() != fields:
        raise ValueError(f"it lacks, or has besides: {', '.join(sorted(map(str, fields ^ document.keys()))):.200}")
    ranks, processors, measured = (document[name] for name in ("ranks", "processors", "measured"))
    chunk, eager = document["chunk_nbytes"], document["eager_nbytes"]
    _need(isinstance(ranks, list) and ranks and all(type(n) is int and n > 0 for n in ranks), "ranks", ranks)
    _need(isinstance(processors, list) and all(isinstance(p, str) for p in processors), "processors", processors)
    _need(isinstance(measured, dict), "measured", measured)
    _need(type(chunk) is int and chunk in CHUNK_NBYTES, "chunk_nbytes", chunk)
    _need(type(eager) is int and (eager in EAGER_NBYTES if len(ranks) == 1 else eager == 0), "eager_nbytes", eager)
    plan = Plan(tuple(ranks), tuple(processors), chunk, eager, measured)
    if document["hash"] != plan.hash:
        raise ValueError(f"its hash {document['hash']!r:.30} is not that of its content, {plan.hash}: it was changed")
    return plan


def _need(is_good: Any, name: str, value: Any) -> None:
    if not is_good:
        raise ValueError(f"{name} is {value!r:.50}")
