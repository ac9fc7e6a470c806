"""A pytest plugin: the ranks of run_ranks() are started by a real mpirun. No test knows.

    python -m pytest -p mpirun_pool --mpirun openmpi-5 --transport mpi tests/python/core/test_ops.py

One mpirun for each number of ranks serves all tests, which costs one start of interpreters and MPI, not hundreds; a
call that fails ends its mpirun, and the next gets a fresh one. --transport is RINGREDUCE_TRANSPORT: with mpi each rank
is a host of its own, and all data goes over MPI. test_mpi_suite.py runs the collective suite so.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import mpis
import pytest
import ranks
from deadlines import HANG_S
from ranks import Outcome

SIZES = (2, 3, 4)
PROGRAM = Path(__file__).with_name("mpirun_pool_main.py")

LEFT_OUT = {
    "test_a_death_fails_the_set": "it kills a rank; test_mpirun.py does that under mpirun",
    "test_a_set_is_removed_under_a_call_of_another_thread": "it starts ranks itself, to talk with them while they run",
    "test_a_set_that_has_failed_is_replaced_and_its_registered_memory_stays_readable": "it waits 5 s for a timeout",
    "test_a_thread_that_calls_late_ends_what_another_one_waits_for": "likewise",
    "test_many_names_in_flat_memory": "20 s, and how ranks were started does not matter to it",
    "test_large": "20 s, most of them NumPy's; test_large_with_forced_algorithms reduces as much",
}
"""Tests that do not run under an mpirun, by name, and why."""
NOT_ACROSS_HOSTS = {
    "test_threads[4]": "4 threads on each of 4 ranks take turns on 2 cores for half a minute",
}
"""Those that do not run with --transport mpi either."""
PROBE = """
import numpy as np
import ringreduce as rr
from mpi4py import MPI
with rr.init() as world:
    total = int(rr.allreduce(np.array([10**world.rank]), op=rr.Sum)[0])
    result = [total, MPI.COMM_WORLD.rank, world.cross_size, rr.mpi_enabled(), MPI.Get_library_version()]
"""


class MpirunPool:
    """The ranks of one mpirun, which wait for work. Leaving the `with` block ends them."""

    def __init__(self, mpi: mpis.Mpi, size: int, transport: str) -> None:
        self._undo = ExitStack()
        self._ranks: list[Connection] = []
        self._pids: list[int] = []
        try:
            folder = Path(self._undo.enter_context(tempfile.TemporaryDirectory(prefix="pool-")))
            self._output = self._undo.enter_context((folder / "output").open("w+b"))
            door = self._undo.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(str(folder / "door"))
            door.listen(size)
            program = mpi.command(size, sys.executable, str(PROGRAM), str(folder / "door"))
            environ = mpi.environment({"RINGREDUCE_TRANSPORT": transport, "PYTHONUNBUFFERED": "1"})
            self._mpirun = self._undo.enter_context(mpis.started(program, environ, self._output))
            self._assemble(door, size)
        except BaseException:
            self._undo.close()
            raise

    def __enter__(self) -> MpirunPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, job: Any, timeout_s: float) -> list[Outcome]:
        """How a job (the arguments of mpirun_pool_main.answer()) ended on each rank. A failure ends the pool."""
        start = time.monotonic()
        begin = self._output.seek(0, os.SEEK_END)
        for rank in self._ranks:
            rank.send(job)
        answers: list[Any] = [None] * len(self._ranks)
        ends = [0.0] * len(self._ranks)
        waiting = dict(zip(self._ranks, range(len(self._ranks)), strict=True))
        while waiting and (ready := wait(waiting, max(0.0, start + timeout_s - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = waiting.pop(connection)
                ends[rank] = time.monotonic()
                with contextlib.suppress(EOFError):
                    answers[rank] = pickle.loads(connection.recv_bytes())
        output = ""
        if any(answer is None or answer[1] for answer in answers):
            self._show(waiting.values())
            self._output.seek(begin)
            output = self._output.read().decode(errors="replace")
            self.close()
        outcomes = []
        for rank, answer in enumerate(answers):
            value, error, kind = answer or (None, "no answer", None)
            status = 0 if answer else None if rank in waiting.values() else 1
            outcomes.append(Outcome(rank, value, error, kind, status, ends[rank] - start, ends[rank], output))
            output = ""  # mpirun's, of all ranks: once is enough
        return outcomes

    def end(self) -> int:
        """Tells the ranks to end; mpirun's status."""
        for rank in self._ranks:
            rank.send(None)
        return self._mpirun.wait(HANG_S)

    def close(self) -> None:
        """Ends the ranks, whatever they do. Idempotent."""
        for rank in self._ranks:
            rank.close()
        self._ranks = []
        self._undo.close()

    @property
    def closed(self) -> bool:
        """Whether it has ended: after close() or a job that did not go well."""
        return not self._ranks

    def _assemble(self, door: socket.socket, size: int) -> None:
        """Waits for the ranks; each says which one it is."""
        deadline = time.monotonic() + HANG_S
        present: dict[int, tuple[Connection, int]] = {}
        try:
            while len(present) < size:
                door.settimeout(0.2)
                try:
                    connection = Connection(door.accept()[0].detach())
                except TimeoutError:
                    if self._mpirun.poll() is None and time.monotonic() < deadline:
                        continue
                    self._output.seek(0)
                    said = self._output.read().decode(errors="replace")
                    raise AssertionError(f"{len(present)} of {size} ranks came under mpirun\n{said}") from None
                rank, told, pid = connection.recv()
                assert told == size, f"MPI.COMM_WORLD has {told} ranks, not {size}"
                present[rank] = (connection, pid)
        finally:
            self._ranks = [present[rank][0] for rank in sorted(present)]
            self._pids = [present[rank][1] for rank in sorted(present)]

    def _show(self, hanging: Any) -> None:
        """Ranks that hang print where."""
        for rank in hanging:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGUSR1)
        time.sleep(ranks.TRACEBACK_S if hanging else 0)


class MpirunPools:
    """Of one MPI and transport, by the number of ranks: what run_ranks() gets its ranks from."""

    def __init__(self, mpi: mpis.Mpi, transport: str) -> None:
        self._mpi = mpi
        self._transport = transport
        self._pools: dict[int, MpirunPool] = {}
        self._across = transport == "mpi"

    def run(
        self, size: int, job: tuple[str, str, str, bytes], env: Mapping[str, str | None], timeout_s: float
    ) -> list[Outcome]:
        """See ranks.Launcher."""
        assert size in SIZES, f"a pool has one of {SIZES} ranks, not {size}"
        if size not in self._pools or self._pools[size].closed:
            self._pools[size] = MpirunPool(self._mpi, size, self._transport)
            self._check(self._pools[size], size)
        return self._pools[size].run((*job, dict(env)), timeout_s)

    def _check(self, pool: MpirunPool, size: int) -> None:
        """They are one job, of this MPI, and on as many hosts as they should be."""
        for outcome in pool.run(("", "", PROBE, pickle.dumps(()), {}), HANG_S):
            assert outcome.error is None, outcome
            *seen, library = outcome.value
            assert seen == [int("1" * size), outcome.rank, size if self._across else 1, self._across], seen
            assert self._mpi.version.split()[-1] in library

    def close(self) -> None:
        """Ends all; fails if a pool that has done its work well does not also end well."""
        with ExitStack() as undo:
            pools = [undo.enter_context(pool) for pool in self._pools.values() if not pool.closed]
            assert [pool.end() for pool in pools] == [0] * len(pools)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mpirun_pool")
    group.addoption("--mpirun", choices=mpis.NAMES, required=True, help="whose mpirun starts the ranks of run_ranks()")
    group.addoption("--transport", choices=("auto", "mpi"), default="auto", help="their RINGREDUCE_TRANSPORT")


def pytest_configure() -> None:
    ranks.SIZES = SIZES


def left_out(transport: str) -> dict[str, str]:
    """The names of tests that do not run, and why."""
    return {**LEFT_OUT, **(NOT_ACROSS_HOSTS if transport == "mpi" else {})}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = left_out(config.getoption("--transport")).keys()

    def stays(item: pytest.Item) -> bool:
        assert isinstance(item, pytest.Function)
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return names.isdisjoint({item.originalname, item.name}) and params.get("size", SIZES[0]) in SIZES

    dropped = [item for item in items if not stays(item)]
    items[:] = filter(stays, items)
    config.hook.pytest_deselected(items=dropped)


@pytest.fixture(autouse=True, scope="session")
def pools(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stands in for the processes of run_ranks()."""
    options = request.config.option
    ranks.launcher = made = MpirunPools(mpis.get(options.mpirun), options.transport)
    try:
        yield
    finally:
        ranks.launcher = None
        made.close()
