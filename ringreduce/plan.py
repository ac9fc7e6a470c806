"""Plan files: the sizes that `ringreduce tune` has measured for a job's ranks and hosts, for RINGREDUCE_PLAN.

A plan is a file of JSON. Its hash is over all that it says, so ranks with the same hash have the same file; init()
raises an error on all of them where they have not. The sizes change when things happen, never what a sum is.
"""

from __future__ import annotations

import json
import os
import re
import stat
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ringreduce import _core, config
from ringreduce.errors import InvalidArgumentError, MismatchError

VARIABLE = "RINGREDUCE_PLAN"
FORMAT = 1
FILE_NBYTES = 1 << 20  # at most
HASH_CHARS = 16  # 64 bits in hexadecimal
CHUNK_LEAST = 4096
LINE_NBYTES = 64
"""A chunk has a line for each rank."""
MOST_RANKS = 1 << 15
PROCESSOR_CHARS = 200


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

    @cached_property
    def hash(self) -> str:
        """Of all the others, HASH_CHARS hexadecimal digits."""
        import hashlib  # loads OpenSSL, 4 ms, for jobs with a plan only

        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_CHARS]

    def text(self) -> str:
        """The file."""
        return json.dumps({"hash": self.hash, **asdict(self)}, indent=1) + "\n"


class Wanted:
    """What RINGREDUCE_PLAN says to this rank: a plan, none, or a file that cannot be used.

    An unusable file is no error before the ranks have met: where only one of them has it, all are to be told.

    Args:
        path: of the file; "": none.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.plan: Plan | None = None
        self._problem: InvalidArgumentError | None = None
        try:
            self.plan = read(path) if path else None
        except InvalidArgumentError as error:
            self._problem = error

    @property
    def setting(self) -> str:
        """For ranks on several hosts to compare: equal where the plans are."""
        return "unusable" if self._problem is not None else self.plan.hash if self.plan is not None else "not set"

    def core(self, hosts: Sequence[int], is_job: bool = True) -> _core.TuningPlan:
        """What a Context takes, which raises MismatchError on all ranks of this host unless all take the same.

        Args:
            hosts: by rank, equal on the same host.
            is_job: all ranks, which the plan has to fit. A group of some goes without a plan of others.
        """
        if self.plan is not None and ranks_by_host(hosts) == self.plan.ranks:
            return _core.TuningPlan(_core_hash(self.plan), self.plan.chunk_nbytes, self.plan.eager_nbytes)
        if self.plan is not None and is_job:
            self._problem = InvalidArgumentError(
                f"{VARIABLE}={self._path}: was measured for {layout(self.plan.ranks)}, and this job has "
                f"{layout(ranks_by_host(hosts))}: run `ringreduce tune` for it, or unset {VARIABLE}"
            )
        return _core.TuningPlan(_core.PLAN_UNUSABLE if self._problem is not None else 0)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Around the Context: what is wrong with this rank's file is raised in place of what all are told."""
        try:
            yield
        except MismatchError:
            if self._problem is not None:
                raise self._problem from None
            raise

    def warn(self) -> None:
        """Warns where this host has a processor on which the plan was not measured."""
        if self.plan is None or processor() in self.plan.processors:
            return
        text = (
            f"{VARIABLE}={self._path}: was measured on {' and '.join(sorted(set(self.plan.processors)))}, and "
            f"{os.uname().nodename} has {processor()}: its sizes may not be the best here; run `ringreduce tune` again"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=config.users_level())


_last: tuple[str, Wanted] | None = None


def wanted(again: bool = False) -> Wanted:
    """What RINGREDUCE_PLAN says now. again: reads the file once more; otherwise what was read last of that path."""
    global _last
    path = config.value(VARIABLE).value
    if again or _last is None or _last[0] != path:
        _last = (path, Wanted(path))
    return _last[1]


def read(path: str) -> Plan:
    """A plan file. Raises InvalidArgumentError that says what is wrong with it."""
    try:
        # Not blocking: what stands there may be a FIFO.
        with open(os.open(os.path.expanduser(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidArgumentError(f"{VARIABLE}={path}: is no regular file")
            data = file.read(FILE_NBYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{VARIABLE}={path}: cannot be read: {error.strerror}") from error
    try:
        if len(data) > FILE_NBYTES:
            raise ValueError(f"has more than {FILE_NBYTES} bytes")
        return _checked(json.loads(data, object_pairs_hook=_without_twins))
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
    """The processor's name, as the kernel gives it: of the first core, or at the end of what is said of all."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = _PROCESSOR.search(file.read(4096)) or _PROCESSOR.search(file.read())  # all takes 10 ms on 100 cores
    except OSError:
        found = None
    name = found[1].strip() if found else os.uname().machine
    return "".join(letter if letter.isprintable() else "?" for letter in name[:PROCESSOR_CHARS])


_PROCESSOR = re.compile(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", re.MULTILINE)


def _core_hash(plan: Plan) -> int:
    """Neither 0 nor UNUSABLE, which say something else."""
    return min(max(int(plan.hash, 16), 1), _core.PLAN_UNUSABLE - 1)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it says something twice")
    return found


def _checked(document: Any) -> Plan:
    if not isinstance(document, dict) or "format" not in document:
        raise ValueError("it says no format")
    if type(document["format"]) is not int or document["format"] != FORMAT:
        raise ValueError(f"it has format {document['format']!r:.20}, and this ringreduce reads {FORMAT}")
    fields = {"hash", *Plan.__dataclass_fields__}
    if document.keys() != fields:
        raise ValueError(f"it lacks, or has besides: {', '.join(sorted(map(ascii, fields ^ document.keys()))):.200}")
    ranks, processors, measured = (document[name] for name in ("ranks", "processors", "measured"))
    chunk, eager = document["chunk_nbytes"], document["eager_nbytes"]
    _need(
        isinstance(ranks, list) and ranks and all(type(n) is int and 0 < n < MOST_RANKS for n in ranks), "ranks", ranks
    )
    are_names = isinstance(processors, list) and all(isinstance(p, str) and p.isprintable() for p in processors)
    _need(
        are_names and len(processors) == len(ranks) and max(map(len, processors)) <= PROCESSOR_CHARS,
        "processors",
        processors,
    )
    _need(isinstance(measured, dict), "measured", measured)
    least = max(CHUNK_LEAST, LINE_NBYTES * sum(ranks))
    _need(
        type(chunk) is int and least <= chunk <= _core.CHUNK_LARGEST and chunk % LINE_NBYTES == 0, "chunk_nbytes", chunk
    )
    # On several hosts the limit is the default: what is eager does without the codecs of `wire=`.
    is_limit = 0 < eager <= _core.EAGER_LARGEST if type(eager) is int and len(ranks) == 1 else eager == 0
    _need(type(eager) is int and is_limit, "eager_nbytes", eager)
    plan = Plan(tuple(ranks), tuple(processors), chunk, eager, measured)
    if document["hash"] != plan.hash:
        raise ValueError(f"its hash {document['hash']!r:.30} is not that of its content, {plan.hash}: it was changed")
    return plan


def _need(is_good: Any, name: str, value: Any) -> None:
    if not is_good:
        raise ValueError(f"{name} is {value!a:.50}")
