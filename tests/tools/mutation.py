#!/usr/bin/env python3
"""Break the program on purpose, one line at a time, and see that the tests notice.

    make build
    .venv/bin/python tests/tools/mutation.py [--sample N | NAME ...]

The rows are in mutations/. Neither the checkout nor the build folder is written to: a C++ mutant is a copy of csrc of
which the objects that depend on the broken line are compiled and linked with those of the build folder
(mutant_core.py), a Python mutant a copy of the package (mutant_python.py).

A mutation is noticed when its tests fail, crash, or do not end within --limit seconds; before, they must pass on the
unchanged program. Exit status 1 when a mutation is not noticed, 2 when a row or the build does not fit.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import random
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import mutant_core
import mutant_python
from mutant import ROOT, Unfit, Verdict
from mutations import MUTATIONS, Mutation

AT_ONCE = 2
"""Mutants at a time: of a core each, on the smallest machine."""

PYTHON_LIMITS = 3
"""Python tests take so many times longer: each of their ranks imports torch."""


class Kind(Protocol):
    """How mutants of one language are made and tested."""

    def make(self, row: Mutation, folder: Path) -> Path:
        """The mutant, in a folder of its own."""

    def test(self, mutant: Path | None, row: Mutation, limit_s: float) -> Verdict:
        """How the row's tests end with it; None: with the unchanged program."""


class Outcome(NamedTuple):
    """What became of a row."""

    row: Mutation
    verdict: Verdict
    make_s: float
    test_s: float


def sample(rows: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Some rows, the same for a seed: one of Python, and the others of C++, of different rooms while there are."""
    shuffled = random.Random(seed).sample(rows, len(rows))
    first: dict[str, Mutation] = {}
    for row in shuffled:
        first.setdefault(row.room, row)
    # All of Python but one come last.
    rest = sorted((row for row in shuffled if first[row.room] is not row), key=lambda row: row.is_python)
    return (sorted(first.values(), key=lambda row: not row.is_python) + rest)[:count]


class Run:
    """One run of the tool."""

    def __init__(self, rows: Sequence[Mutation], build: Path, folder: Path, limit_s: float) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._kinds: dict[bool, Kind] = {}
        for row in rows:
            if row.is_python not in self._kinds:
                self._kinds[row.is_python] = (
                    mutant_python.Python(folder) if row.is_python else mutant_core.Core(build, folder)
                )
        self._unchanged: dict[tuple[str, ...], Verdict] = {}
        self._locks: dict[tuple[str, ...], threading.Lock] = collections.defaultdict(threading.Lock)
        self.stopped = False

    def outcome(self, row: Mutation) -> Outcome | None:
        """Makes a mutant and tests it. Raises Unfit; None when the run has been stopped."""
        if self.stopped:
            return None
        try:
            kind = self._kinds[row.is_python]
            start = time.monotonic()
            mutant = kind.make(row, self._folder / row.name)
            middle = time.monotonic()
            self._check_unchanged(kind, row)
            begin = time.monotonic()
            verdict = kind.test(mutant, row, row.limit_s or self._limit(row))
            return Outcome(row, verdict, middle - start, time.monotonic() - begin)
        except BaseException:
            self.stopped = True
            raise

    def _limit(self, row: Mutation) -> float:
        return self._limit_s * (PYTHON_LIMITS if row.is_python else 1)

    def _check_unchanged(self, kind: Kind, row: Mutation) -> None:
        with self._locks[row.tests]:
            if row.tests not in self._unchanged:
                self._unchanged[row.tests] = kind.test(None, row, 2 * self._limit(row))
            verdict = self._unchanged[row.tests]
        if verdict.noticed:
            raise Unfit(f"{row.name}: {', '.join(row.tests)} of the unchanged program: {verdict.text}")


def show(done: Outcome, width: int) -> None:
    """One line of a row."""
    kind = "noticed" if done.verdict.noticed else "SURVIVED"
    seconds = f"{done.make_s:5.1f} s + {done.test_s:5.1f} s"
    print(f"{done.row.name:{width}} {done.row.room:10} {kind:8} {seconds}  {done.verdict.text}", flush=True)


def chosen_rows(arguments: argparse.Namespace) -> list[Mutation]:
    """What the command line asks for, Python first, as its tests take longest."""
    names = {row.name: row for row in MUTATIONS}
    if unknown := [name for name in arguments.names if name not in names]:
        raise Unfit(f"no mutation is called {', '.join(unknown)}")
    rows = [names[name] for name in arguments.names] or list(MUTATIONS)
    if arguments.sample is not None:
        rows = sample(rows, arguments.sample, arguments.seed)
        print(f"seed {arguments.seed}; again: tests/tools/mutation.py {' '.join(row.name for row in rows)}", flush=True)
    return sorted(rows, key=lambda row: not row.is_python)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows of mutations; all of them if none is named")
    parser.add_argument("--sample", type=int, metavar="N", help="N rows, others in each run")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of the sample")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "cmake", metavar="DIR", help="see `make build`")
    parser.add_argument("--limit", type=float, default=30, metavar="S", help="seconds for a mutant's tests in C++")
    arguments = parser.parse_args()
    start = time.monotonic()
    survivors: list[str] = []
    try:
        rows = chosen_rows(arguments)
        width = max(len(row.name) for row in rows)
        with tempfile.TemporaryDirectory(prefix="ringreduce-mutation-") as folder:
            run = Run(rows, arguments.build, Path(folder), arguments.limit)
            with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                try:
                    for future in concurrent.futures.as_completed([pool.submit(run.outcome, row) for row in rows]):
                        if done := future.result():
                            show(done, width)
                            survivors += [] if done.verdict.noticed else [done.row.name]
                except BaseException:
                    run.stopped = True
                    raise
    except Unfit as error:
        print(error, file=sys.stderr)
        return 2
    what = f"not noticed: {', '.join(survivors)}" if survivors else "all noticed"
    print(f"{len(rows)} mutations, {what}; {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
