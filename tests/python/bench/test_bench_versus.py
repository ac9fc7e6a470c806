"""`ringreduce bench --vs`: peers in turns, ratios within rounds, and peers that are absent, wrong, slow or broken."""

import contextlib
import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from deadlines import HANG_S, SOON_S
from processes import completed, ends
from test_bench import SLURM_SHELL

from ringreduce.bench import comparison, memory, peers, versus, versus_table
from ringreduce.bench.cli import main
from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.options import parse
from ringreduce.bench.peers import gloo, horovod, mpi, worker
from ringreduce.bench.peers.called import Called
from ringreduce.bench.peers.cell import LEAST, MARK, Absent, Cell, Job, Outcome, run
from ringreduce.bench.peers.ours import Ours
from ringreduce.launch.binding import cpu_shares
from ringreduce.launch.mpi.installations import Installation
from ringreduce.launch.python import run_module

CELL = Cell("allreduce", 64, 16, "float32", "sum", True, 2, (0, 1), 20, 2, True)
HERE = Path(__file__).parent
QUICK = ["--iters", "20", "--warmup", "2", "--rounds", "1"]


@dataclass(frozen=True)
class Script:
    """A peer whose job is a Python script."""

    text: str
    name: str = "script 1.0"

    @property
    def facts(self) -> dict[str, str]:
        facts = {"library": "script", "version": "1.0", "level": "python"}
        return {**facts, "buffers": "private", "algorithm": "default"}

    def unsupported(self, cell: Cell) -> str | None:
        return "no barrier" if cell.collective == "barrier" else None

    def job(self, cell: Cell) -> Job:
        return Job([sys.executable, "-c", self.text])


def says(p50: float, wrong: int = 0) -> Script:
    row = {"min": p50 / 2, "p50": p50, "p99": 2 * p50, "wrong": wrong}
    return Script(f"print('noise'); print({json.dumps(json.dumps(row))})")


def outcome(competitor: Any, turn: int, p50: float) -> tuple[int, Any, Outcome]:
    return turn, competitor, run(replace(says(p50), name=competitor.name), CELL, 30)


def test_ratios_are_formed_within_a_round_and_medians_over_rounds() -> None:
    ours, first, second = (Script("", name) for name in ("ringreduce private", "first 1", "second 1"))
    turns = []
    for turn, times in enumerate([(10, 40, 35), (20, 60, 120), (10, 20, 50)]):
        turns += [outcome(competitor, turn, p50) for competitor, p50 in zip((ours, first, second), times, strict=True)]
    found = comparison.document({}, turns)
    assert {ratio["peer"]: ratio["median"] for ratio in found["ratios"]} == {"first 1": 3.0, "second 1": 5.0}
    hardest = comparison.best(found["ratios"], "ringreduce private", "python", 64)
    assert hardest is not None
    assert (hardest["peer"], hardest["min"], hardest["max"]) == ("first 1", 2.0, 4.0)
    middle = comparison.middle(found["results"], "second 1", "python", 64)
    assert middle is not None
    assert middle["time_us"] == {"min": 25.0, "p50": 50.0, "p99": 100.0}


def test_a_peer_that_hangs_costs_its_cell_and_leaves_no_process(tmp_path: Path) -> None:
    # A rank that has left its launcher's session, as MPI's daemons do, and that ignores what can be ignored.
    script = (
        f"import os, signal, time  # {tmp_path}\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork() == 0: os.setsid()\n"
        "time.sleep(1000)\n"
    )
    start = time.monotonic()
    result = run(Script(script), CELL, 1.0)
    assert (result.status, result.row) == ("timeout", None)
    assert time.monotonic() - start < 30
    assert [pid for pid in processes() if str(tmp_path) in command_line(pid)] == []


def test_a_peer_that_is_killed_leaves_no_shared_memory(tmp_path: Path) -> None:
    foreign, own = (Path(f"/dev/shm/ringreduce-test-{name}-{os.getpid()}") for name in ("foreign", "own"))
    script = (
        "import mmap, os, pathlib, time\n"
        f"for name in {str(foreign)!r}, {str(own)!r}:\n"
        "    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)\n"
        "    os.truncate(file, 4096)\n"
        "    globals()[name] = mmap.mmap(file, 4096)\n"
        "    os.close(file)\n"
        f"pathlib.Path({str(tmp_path / 'mapped')!r}).touch()\n"
        "time.sleep(1000)\n"
    )
    foreign.touch()
    try:
        for deadline_s in (1.0, 4.0, 16.0, 60.0):  # until one is long enough for its start
            assert run(Script(script), CELL, deadline_s).status == "timeout"
            if (tmp_path / "mapped").exists():
                break
        assert (foreign.exists(), own.exists()) == (True, False)
    finally:
        foreign.unlink()
        own.unlink(missing_ok=True)


SLOW_TO_START = """
import subprocess, time

class Slow(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        if "time.sleep(60)" in str(words):
            time.sleep(60)

subprocess.Popen = Slow
"""


@pytest.mark.parametrize("before", ["", SLOW_TO_START], ids=["started", "being started"])
def test_a_command_that_is_told_to_end_takes_its_jobs_along(before: str, tmp_path: Path) -> None:
    peer = f"import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)  # {tmp_path}"
    program = (
        f"{before}import sys; sys.path[:] = {[*sys.path, str(HERE)]!r}\n"
        "from test_bench_versus import QUICK, Script, main, peers\n"
        f"peers.FINDERS['gloo'] = lambda: [Script({peer!r})]\n"
        "main(['allreduce', '-np', '1', '--sizes', '64', '--buffers', 'private', '--vs', 'gloo', *QUICK])\n"
    )
    done = completed([sys.executable, "-c", program])
    left = [pid for pid in processes() if str(tmp_path) in command_line(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert (done.returncode, left) == (128 + signal.SIGTERM, []), done.stderr


def test_a_command_that_is_killed_takes_its_peers_job_along(tmp_path: Path) -> None:
    peer = f"import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)  # {tmp_path}"
    program = (
        f"import sys; sys.path[:] = {[*sys.path, str(HERE)]!r}\n"
        "from test_bench_versus import CELL, Script, run\n"
        f"run(Script({peer!r}), CELL, 1000)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=HANG_S
    )
    assert killed.returncode == -signal.SIGKILL
    left = [pid for pid in processes() if str(tmp_path) in command_line(pid)]
    try:
        assert [ends(pid, SOON_S) for pid in left] == [True] * len(left)
    finally:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_peer_that_fails_shows_what_it_said() -> None:
    result = run(Script("import sys; print('so far so good'); sys.exit('no such device')"), CELL, 30)
    assert result.status == "failed"
    assert "exit status 1" in result.text
    assert "no such device" in result.text
    assert run(Script(""), replace(CELL, collective="barrier"), 30).status == "unsupported"


def processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize("tag", ["[0]<stdout>:", "[1,0]<stdout>:", "[0]<stdout>: "], ids=["Gloo", "MPI", "ringrun"])
def test_a_result_is_found_behind_a_launchers_tag(tag: str) -> None:
    said = says(5.0).text.replace("print('noise'); print(", f"print({tag + 'noise'!r}); print({tag!r} + ")
    result = run(Script(f"{said}; print({tag + 'bye'!r})"), CELL, 30)
    assert result.row is not None, result.text
    assert result.row["time_us"] == {"min": 2.5, "p50": 5.0, "p99": 10.0}


def test_horovods_launcher_tags_its_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """horovodrun is ringrun here, and horovod.torch is ringreduce.torch."""
    pytest.importorskip("torch")
    launcher = tmp_path / "horovodrun"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(run_module("ringreduce.launch.ringrun", "--tag-output"))} "$@"\n')
    launcher.chmod(0o755)
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "torch.py").write_text(
        "import sys, ringreduce.torch\nsys.modules[__name__] = ringreduce.torch\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(horovod.metadata, "version", lambda name: "0.28.1")
    peer = horovod.find()[0]
    assert not isinstance(peer, Absent)
    result = run(peer, CELL, 60)
    assert result.row is not None, result.text
    assert (result.row["library"], result.row["wrong"]) == ("horovod", 0)


def compare(monkeypatch: pytest.MonkeyPatch, found: list[Any], *argv: str) -> int:
    """The command with these peers instead of those of the machine."""
    monkeypatch.setitem(peers.FINDERS, "gloo", lambda: found)
    return main(["allreduce", "-np", "2", "--sizes", "64", "--buffers", "private", "--vs", "gloo", *QUICK, *argv])


def test_a_wrong_peer_is_marked_and_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, [says(5.0, wrong=3)]) == 1
    printed = capsys.readouterr().out
    assert "# Out of bounds values : 3 FAILED" in printed
    assert compare(monkeypatch, [says(5.0)]) == 0


def test_ours_is_measured_in_a_shell_within_a_job_of_one_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in SLURM_SHELL.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "cells.json"
    assert compare(monkeypatch, [says(5.0)], "--json", str(file)) == 0
    cells = json.loads(file.read_text())["cells"]
    assert {(cell["competitor"], cell["status"]) for cell in cells} == {
        ("ringreduce private", "ok"),
        ("script 1.0", "ok"),
    }


def test_what_nobody_has_checked_is_not_called_right(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, [says(5.0)], "--no-check", "--rounds", "2") == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if " script 1.0 " in line]
    assert [row[-2] for row in rows] == ["N/A", "N/A"], "in the first round and below; the last word is ours'"
    assert said.endswith("# Out of bounds values : not checked\n")
    broken = comparison.document(
        {"rounds": 1, "dtype": "float32", "op": "sum"}, [(0, says(5.0), Outcome("script 1.0", CELL, "failed"))]
    )
    assert versus_table.tail(broken).endswith("# Out of bounds values : not checked")


def test_a_library_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
    honest = gloo.find()[0]
    assert isinstance(honest, Called)
    result = run(honest, CELL, 60)
    assert result.row is not None, result.text
    assert result.row["wrong"] == 0
    result = run(replace(honest, module="peers.lying"), CELL, 60)
    assert result.row is not None, result.text
    assert result.row["wrong"] == 2 * 16  # before the timed calls, and after them


def test_the_first_round_shows_every_size_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(monkeypatch, [says(5.0)], "--sizes", "0,1,64") == 0  # a byte is measured as one float
    first = capsys.readouterr().out.partition("# medians of")[0]
    assert [line.split()[0] for line in first.splitlines() if "script 1.0" in line] == ["0", "4", "64"]


def test_what_does_not_reduce_has_no_op() -> None:
    peer = gloo.find()[0]
    if isinstance(peer, Absent):
        pytest.skip("no torch here")
    for name, op in (("allgather", "sum"), ("allreduce", "average")):
        one = versus.cell(parse([name, "--op", "average", "--vs", "gloo"]), peer, 64, 2, (0, 1), first=True)
        assert (one.collective, one.op) == (name, op)


def test_an_absent_peer_is_listed_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cells.json"
    assert compare(monkeypatch, [Absent("gloo", "pip install torch")], "--json", str(file)) == 0
    assert "# absent: gloo: pip install torch" in capsys.readouterr().out
    assert json.loads(file.read_text())["meta"]["absent"] == {"gloo": "pip install torch"}


def test_the_document_the_picture_and_the_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document, picture, report = tmp_path / "a.json", tmp_path / "a.png", tmp_path / "a.html"
    argv = ["--json", str(document), "--plot", str(picture), "--html", str(report)]
    nasty = replace(says(5.0), name="</script> 1.0")
    assert compare(monkeypatch, [nasty, Script("import sys; sys.exit(3)", "broken 1.0")], *argv) == 0
    found = json.loads(document.read_text())
    assert {(cell["competitor"], cell["status"]) for cell in found["cells"]} == {
        ("ringreduce private", "ok"),
        ("</script> 1.0", "ok"),
        ("broken 1.0", "failed"),
    }
    rows = found["results"]
    assert len({frozenset(row) for row in rows}) == 1, "ours and theirs have the same fields"
    assert {"library", "version", "level", "time_us", "wrong", "fraction_of_limit", "round"} <= rows[0].keys()
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")
    text = report.read_text()
    assert "<svg" in text
    data = text.split("<script type='application/json' id='data'>")[1].split("</script>")[0]
    assert json.loads(data) == found


def test_a_rank_of_a_job_starts_no_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "3"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "3")):
        monkeypatch.setenv(f"RINGREDUCE_{name}", value)
    assert compare(monkeypatch, [says(5.0)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "call it outside of this job of 3 ranks (ringrun), with -np" in said.err


@pytest.mark.parametrize("option", ["--json", "--html", "--plot"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    if option != "--json":
        pytest.importorskip("matplotlib")
    assert compare(monkeypatch, [says(5.0)], option, str(tmp_path / "no" / "a.svg")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("a.svg: cannot be written: there is no folder")) == ("", 1)


def test_a_size_without_room_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1 << 20)
    assert compare(monkeypatch, [says(5.0)], "--sizes", "8,1M") == 2
    said = capsys.readouterr()
    assert (said.out, "a size of 1048576 bytes takes" in said.err) == ("", True)


@pytest.mark.parametrize("library", list(mpi.LIBRARIES))
def test_an_mpi_that_is_here_is_right_in_every_collective(library: str) -> None:
    found = mpi.find(library)[0]
    if isinstance(found, Absent):
        pytest.skip(f"no {library} here: {found.advice}")
    for name in COLLECTIVES:
        for count in (16, 4096):
            cell = replace(CELL, collective=name, nbytes=count * 4, count=count, in_place=name == "broadcast")
            result = run(found, cell, 60)
            assert result.row is not None, f"{name}: {result.text}"
            assert result.row["wrong"] == 0, name


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_c_program_is_asked_for_its_own_dtype_only(collective: str) -> None:
    peer = mpi.Mpi(Installation("mpich", "1.0", "mpirun", "mpicc"))
    cell = replace(CELL, collective=collective)
    assert peer.unsupported(cell) is None
    moves = collective != "barrier"
    assert (peer.unsupported(replace(cell, dtype="float64")) is not None) is moves, "it would send half of the bytes"
    reduces = COLLECTIVES[collective].reduces
    assert (peer.unsupported(replace(cell, op="max")) is not None) is reduces


def test_mpi_is_not_asked_for_more_elements_than_an_int_counts() -> None:
    peer = mpi.Mpi(Installation("mpich", "1.0", "mpirun", "mpicc"))
    most = versus.cell(parse(["allreduce", "--vs", "mpich"]), peer, (1 << 33) - 4, 2, (0, 1), first=True)
    assert peer.unsupported(most) is None
    assert peer.unsupported(replace(most, count=most.count + 1)) == "MPI counts elements by an int, 2147483647 at most"


@pytest.mark.parametrize("library", list(mpi.LIBRARIES))
def test_the_c_program_measures_no_other_size_than_it_is_asked_for(library: str) -> None:
    found = mpi.find(library)[0]
    if isinstance(found, Absent):
        pytest.skip(f"no {library} here: {found.advice}")
    job = found.job(replace(CELL, count=(1 << 32) + 16))  # its lower half is 16
    done = completed(job.command, env={**os.environ, **job.environ})
    assert (done.returncode, "p50" in done.stdout) == (2, False), done.stdout + done.stderr


def even_and_odd_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The even hardware threads are of one core, the odd ones of another."""

    def shares(ranks: int, cpus: Collection[int]) -> list[frozenset[int]]:
        return cpu_shares(ranks, cpus, lambda cpu: (0, cpu % 2))

    monkeypatch.setattr(peers.cell, "cpu_shares", shares)


@pytest.mark.parametrize(
    ("bind", "ranks", "openmpi", "cpus"),
    [
        ("core", 2, ["--bind-to", "none"], "4,6;5,7"),
        ("none", 2, ["--bind-to", "none"], ""),
        ("core", 4, ["--use-hwthread-cpus", "--bind-to", "none"], "4;6;5;7"),
        ("none", 4, ["--use-hwthread-cpus", "--bind-to", "none"], ""),
        ("core", 5, ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"], ""),
        ("none", 5, ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"], ""),
    ],
)
def test_an_mpi_is_bound_as_ours_is(
    monkeypatch: pytest.MonkeyPatch, bind: str, ranks: int, openmpi: list[str], cpus: str
) -> None:
    """On two cores of two hardware threads each, which are not the machine's first."""
    monkeypatch.setattr(peers.cell, "cores_of", lambda cpus: len(cpus) // 2)
    even_and_odd_cores(monkeypatch)
    monkeypatch.setattr(mpi.Mpi, "build", lambda _: Path("program"))
    cell = replace(CELL, ranks=ranks, cores=(4, 5, 6, 7), bind=bind)
    count = ["-np", str(ranks)]
    starts = {"openmpi": ["run", *openmpi, *count], "mpich": ["run", "-bind-to", "none", *count]}
    for library, start in starts.items():
        command = mpi.Mpi(Installation(library, "5.0", "run", "mpicc")).job(cell).command
        assert (command[: len(start) + 1], command[-1]) == ([*start, "program"], cpus)


def test_an_mpi_on_other_hosts_is_bound_by_its_launcher() -> None:
    cell = replace(CELL, hosts=(("a", 1), ("b", 1)))
    launch = mpi.Mpi(Installation("openmpi", "5.0", "run", "mpicc")).launch(cell)
    assert launch == ["run", "-H", "a:1,b:1", "--bind-to", "core", "-np", "2"]


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_an_mpi_that_is_here_runs_where_it_may(library: str) -> None:
    """Its launcher would bind one rank to the machine's first core, whatever taskset has said."""
    found = mpi.find(library)[0]
    if isinstance(found, Absent):
        pytest.skip(f"no {library} here: {found.advice}")
    last = max(os.sched_getaffinity(0))
    job = found.job(replace(CELL, ranks=1, cores=(last,)))
    done = completed(job.command, env={**os.environ, **job.environ})
    row = json.loads(done.stdout)
    assert (row["cpu"], row["wrong"]) == (last, 0), done.stderr


def test_an_openmpi_that_is_here_knows_hardware_threads() -> None:
    found = mpi.find("openmpi")[0]
    if isinstance(found, Absent):
        pytest.skip(f"no openmpi here: {found.advice}")
    assert isinstance(found, mpi.Mpi)
    launch = found.installation.launch(2, oversubscribed=False, on_hwthreads=True)
    done = completed(
        [*launch, sys.executable, "-c", "print('here')"], env={**os.environ, **found.installation.environ()}
    )
    assert (done.returncode, done.stdout.split()) == (0, ["here", "here"]), done.stderr


def test_the_document_says_whether_ranks_were_bound_and_cores_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "cells.json"
    assert compare(monkeypatch, [says(5.0)], "--bind", "none", "--json", str(file)) == 0
    meta = json.loads(file.read_text())["meta"]
    assert meta["bind"] == "none"
    assert meta["load_average_after"] >= 0


class FakeEndpoint:
    """Two ranks whose all-reduce is the sum that it must be; the other rank is this one's twin."""

    rank, size = 1, 2

    def __init__(self, cell: Cell) -> None:
        oracle = COLLECTIVES[cell.collective].oracle(cell.dtype, cell.op, 2)
        self.sums = oracle.reduced(np.arange(cell.count)).astype(np.float32)

    def operation(self, collective: str, src: Any, dst: Any, op: str) -> Callable[[], Any]:
        return lambda: self.sums.copy()

    def barrier(self) -> None: ...

    def largest(self, values: Any) -> Any:
        return values

    def close(self) -> None: ...


def work(
    monkeypatch: pytest.MonkeyPatch, cell: Cell, endpoint: Any, rank: str = "1", size: str = "2"
) -> list[str | list[int]]:
    """Runs the worker as a rank, by the environment. Returns what happened: CPUs it was bound to, "connect"."""
    happened: list[str | list[int]] = []

    def connect() -> Any:
        happened.append("connect")
        return endpoint

    monkeypatch.setitem(sys.modules, "fake.peer", SimpleNamespace(connect=connect))  # type: ignore[arg-type]
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: happened.append(sorted(cpus)))
    for name, value in (("RANK", rank), ("SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_SIZE", size)):
        monkeypatch.setenv(f"RINGREDUCE_{name}", value)
    assert worker.main("fake.peer", json.dumps(asdict(cell))) == 0
    return happened


def test_a_peer_is_bound_to_the_same_cores_as_ours_before_it_starts_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(CELL, cores=(0, 1, 2, 3))
    even_and_odd_cores(monkeypatch)
    assert work(monkeypatch, cell, FakeEndpoint(cell)) == [[1, 3], "connect"]
    assert work(monkeypatch, replace(cell, bind="none"), FakeEndpoint(cell)) == ["connect"]
    assert work(monkeypatch, replace(cell, cores=(0,)), FakeEndpoint(cell)) == ["connect"]


def test_a_peer_within_another_launchers_rank_is_bound_once_it_knows_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = replace(CELL, cores=(0, 1))
    endpoint = FakeEndpoint(cell)
    assert work(monkeypatch, cell, endpoint, size="1", rank="0") == ["connect", [endpoint.rank]]


def test_what_a_call_returns_is_its_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cell = replace(CELL, in_place=False)
    endpoint = FakeEndpoint(cell)
    endpoint.rank = 0  # which prints
    work(monkeypatch, cell, endpoint)
    assert json.loads(capsys.readouterr().out)["wrong"] == 0
    endpoint.sums[3] += 1
    work(monkeypatch, cell, endpoint)
    assert json.loads(capsys.readouterr().out)["wrong"] == 2  # before the timed calls, and after them


def test_horovods_new_result_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    names = dict.fromkeys(
        ("Sum", "Min", "Max", "Product", "init", "allreduce_", "broadcast_", "barrier"), lambda *_: None
    )
    made = torch.full((4,), 7.0)
    fake = SimpleNamespace(**names, rank=lambda: 0, size=lambda: 2, allreduce=lambda x, name, op: made)
    monkeypatch.setitem(sys.modules, "horovod", SimpleNamespace(torch=fake))  # type: ignore[arg-type]
    src, dst = np.zeros(4, np.float32), np.zeros(4, np.float32)
    assert horovod.connect().operation("allreduce", src, dst, "sum")() is made
    assert not dst.any()


def test_of_two_calls_p99_is_the_slower_one() -> None:
    found = [gloo.find()[0], mpi.find("openmpi")[0]]
    for peer in [Ours("c", "private"), *(one for one in found if not isinstance(one, Absent))]:
        result = run(peer, replace(CELL, nbytes=1 << 16, count=1 << 14, iters=2), 60)
        assert result.row is not None, result.text
        times = result.row["time_us"]
        assert times["min"] <= times["p50"] <= times["p99"], peer.name


def test_an_mpirun_of_another_mpi_is_no_figure() -> None:
    """It starts so many jobs of one rank, which agree with themselves in no time."""
    peer = mpi.find("mpich")[0]
    if isinstance(peer, Absent):
        pytest.skip("no MPICH here")
    assert isinstance(peer, mpi.Mpi)
    what = ["allreduce", "4", "1", "2", "1", "1", "1", "2", ""]
    done = completed([str(peer.build()), *what], env={**os.environ, **peer.installation.environ()})
    assert done.returncode != 0
    assert "1 ranks have met, not 2" in done.stderr


def test_everyone_makes_the_same_number_of_calls() -> None:
    assert versus.calls(8, "c", oversubscribed=False)[0] == 100_000
    assert versus.calls(128 << 20, "python", oversubscribed=False) == versus.calls(128 << 20, "c", oversubscribed=False)
    assert versus.calls(64 << 10, "c", oversubscribed=True)[0] < versus.calls(64 << 10, "c", oversubscribed=False)[0]


def test_a_mark_is_only_in_the_environment_of_the_cell() -> None:
    script = f"import json, os; print(json.dumps({{'min': 1, 'p50': 1, 'p99': 1, 'wrong': len(os.environ[{MARK!r}])}}))"
    result = run(Script(script), CELL, 30)
    assert result.row is not None
    assert result.row["wrong"] == 32
    assert MARK not in os.environ


def test_the_command_of_the_readme(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "cells.json"
    argv = ["allreduce", "-np", "2", "--sizes", "64", "--vs", "gloo,nccl", *QUICK, "--json", str(file)]
    done = completed([sys.executable, "-m", "ringreduce.bench", *argv])
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert {row["library"] for row in found["results"]} == {"ringreduce", "gloo"}
    assert all(row["wrong"] == 0 for row in found["results"])
    assert "nccl" in found["meta"]["absent"]
    assert "best peer at level python" in done.stdout


def test_a_slow_peer_makes_fewer_calls() -> None:
    assert [replace(CELL, iters=1000).affordable(pace) for pace in (1e-6, 0.1, 10.0)] == [1000, 30, 3]
    assert replace(CELL, iters=2).affordable(10.0) == 2
    assert [replace(CELL, warmup=100).warming(pace) for pace in (1e-6, 0.1, 10.0)] == [99, 30, 1]


def test_everyone_makes_as_many_calls_as_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = versus.cell(
        parse(["allreduce", "--iters", "500", "--warmup", "50", "--vs", "gloo"]), says(1), 64, 2, (0,), True
    )
    assert (cell.affordable(10.0), cell.warming(10.0)) == (500, 49)
    assert replace(cell, warmup=1).warming(10.0) == 1
    monkeypatch.setattr(mpi.Mpi, "build", lambda self: Path("collectives"))
    peer = mpi.Mpi(Installation("mpich", "1.0", "mpirun", "mpicc"))
    assert peer.job(cell).command[-6:-2] == ["500", "50", "inf", "inf"]
    paced = replace(cell, is_paced=True)
    assert peer.job(paced).command[-6:-2] == ["500", "50", "3.0", "inf"]
    assert peer.job(replace(paced, is_warmup_given=False)).command[-6:-2] == ["500", "50", "3.0", "3.0"]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ([], []),  # by its own pace between hosts
        (["--warmup", "50"], ["--warmup", "50"]),
        (["--iters", "500", "--warmup", "50"], ["--iters", "500", "--warmup", "50"]),
    ],
    ids=" ".join,
)
def test_ours_is_told_what_the_user_says_of_calls_between_hosts(words: list[str], ours: list[str]) -> None:
    options = parse(["allreduce", "-H", "a:1,b:1", "--vs", "gloo", *words])
    command = Ours("c", "private").job(versus.cell(options, says(1), 64, 2, (0,), True)).command
    assert [word for pair in itertools.pairwise(command) if pair[0] in ("--iters", "--warmup") for word in pair] == ours


def test_a_warm_up_is_as_long_as_the_user_says() -> None:
    slow = replace(CELL, warmup=500, is_paced=True)
    assert slow.warming(0.1) < 100
    assert replace(slow, is_warmup_given=True).warming(0.1) == 499
    assert replace(slow, is_warmup_given=True).affordable(10.0) == min(slow.iters, LEAST)


@pytest.mark.parametrize("library", list(mpi.LIBRARIES))
def test_an_mpi_counts_calls_without_end_of_time(library: str) -> None:
    found = mpi.find(library)[0]
    if isinstance(found, Absent):
        pytest.skip(f"no {library} here: {found.advice}")
    result = run(found, replace(CELL, is_paced=False), 60)
    assert result.row is not None, result.text
    assert result.row["wrong"] == 0
