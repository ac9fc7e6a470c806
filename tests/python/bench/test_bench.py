"""`ringreduce bench`: the JSON has the promised schema, wrong results are counted and end with status 1."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from processes import completed
from ranks import clean_environment

import ringreduce
from ringreduce.bench import limit, loops, memory, start, table
from ringreduce.bench.cli import main
from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.measure import Row
from ringreduce.bench.options import nbytes, parse
from ringreduce.bench.oracle import DTYPES, OPS, Oracle
from ringreduce.bench.peers import find
from ringreduce.bench.percentile import p99
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch.binding import cores_of
from ringreduce.tuning.cli import main as tune

RunRanks = Callable[..., list[Any]]

SCHEMA = {
    "library": str,
    "version": str,
    "level": str,
    "collective": str,
    "ranks": int,
    "nbytes": int,
    "count": int,
    "dtype": str,
    "op": (str, type(None)),
    "in_place": bool,
    "buffers": str,
    "algorithm": str,
    "time_us": dict,
    "algbw_GBps": float,
    "busbw_GBps": float,
    "wrong": (int, type(None)),
    "fraction_of_limit": (float, type(None)),
}
QUICK = ["--iters", "20", "--warmup", "2"]
SLURM_SHELL = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "1"}
"""Of `srun --pty bash`: each process there looks like the one rank of a job."""


def bench(*commands: Sequence[str]) -> list[int]:
    """One rank's part of several commands, one job after the other."""
    return [main([*argv, *QUICK]) for argv in commands]


def results(run_ranks: RunRanks, folder: Path, size: int, *commands: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The rows of each command's JSON, checked against the schema."""
    files = [folder / f"{index}.json" for index in range(len(commands))]
    each = [[*argv, "--json", str(file)] for argv, file in zip(commands, files, strict=True)]
    assert run_ranks(bench, size, args=each) == [[0] * len(commands)] * size
    return [rows_of(file, size) for file in files]


def rows_of(file: Path, size: int) -> list[dict[str, Any]]:
    document = json.loads(file.read_text())
    assert document["meta"]["ranks"] == size
    assert "RENDEZVOUS" not in file.read_text()
    assert len(document["meta"]["binding"]) == size
    assert document["meta"]["load_average_after"] >= 0
    rows: list[dict[str, Any]] = document["results"]
    for row in rows:
        assert row.keys() == SCHEMA.keys()
        assert all(isinstance(row[key], kind) for key, kind in SCHEMA.items())
        assert 0 < row["time_us"]["min"] <= row["time_us"]["p50"] <= row["time_us"]["p99"]
    return rows


def test_allreduce_gives_the_schema_and_no_wrong_element(run_ranks: RunRanks, tmp_path: Path) -> None:
    kinds = [(level, buffers) for level in ("c", "python") for buffers in ("private", "registered")]
    argv = ["allreduce", "--sizes", "8,4K,256K"]
    commands = [[*argv, "--level", level, "--buffers", buffers] for level, buffers in kinds]
    for kind, rows in zip(kinds, results(run_ranks, tmp_path, 2, *commands), strict=True):
        assert [row["nbytes"] for row in rows] == [8, 4096, 262144]
        for row in rows:
            assert row["wrong"] == 0
            assert (row["level"], row["buffers"]) == kind
            assert (row["op"], row["in_place"]) == ("sum", True)
            assert row["algbw_GBps"] == pytest.approx(row["nbytes"] / row["time_us"]["p50"] * 1e-3)
            assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"])  # 2(N-1)/N is 1 for two ranks
            limited = row["fraction_of_limit"] is not None
            assert limited == (kind[0] == "c")
            assert not limited or row["fraction_of_limit"] > 0


def test_the_algorithm_is_that_of_the_memory_of_both_operands(run_ranks: RunRanks, tmp_path: Path) -> None:
    """`ringreduce.allreduce` makes its result in private memory; direct is for operands that are both registered."""
    commands = [
        ["allreduce", "--sizes", "256K", "--level", level, way, "--buffers", memory]
        for level in ("c", "python")
        for way in ("--in-place", "--no-in-place")
        for memory in ("private", "registered")
    ]
    used = [rows[0]["algorithm"] for rows in results(run_ranks, tmp_path, 2, *commands)]
    private, direct = used[:2]
    assert private != direct
    assert used == [private, direct] * 3 + [private] * 2


@pytest.mark.parametrize("level", ["c", "python"])
def test_every_collective_is_right_on_three_ranks(run_ranks: RunRanks, tmp_path: Path, level: str) -> None:
    sizes = {name: [] if name == "barrier" else ["--sizes", "8,100K"] for name in COLLECTIVES}
    commands = [[name, *sizes[name], "--level", level] for name in COLLECTIVES]
    for name, rows in zip(COLLECTIVES, results(run_ranks, tmp_path, 3, *commands), strict=True):
        assert [row["wrong"] for row in rows] == [0] if name == "barrier" else [0, 0]
        factor = {"allreduce": 4 / 3, "broadcast": 1, "barrier": 0}.get(name, 2 / 3)
        assert rows[-1]["busbw_GBps"] == pytest.approx(factor * rows[-1]["algbw_GBps"])


@pytest.mark.parametrize("level", ["c", "python"])
def test_every_dtype_and_op(run_ranks: RunRanks, tmp_path: Path, level: str) -> None:
    if level == "python":
        pytest.importorskip("ml_dtypes")
    kinds = [(dtype, op) for dtype in DTYPES for op in OPS]
    argv = ["allreduce", "--sizes", "2K", "--level", level]
    commands = [[*argv, "--dtype", dtype, "--op", op] for dtype, op in kinds]
    for kind, rows in zip(kinds, results(run_ranks, tmp_path, 2, *commands), strict=True):
        assert [row["wrong"] for row in rows] == [0], kind


def test_the_command_starts_its_own_ranks(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    argv = ["allreduce", "-np", "2", "-b", "1K", "-e", "64K", "-f", "8", *QUICK, "--json", str(file)]
    done = completed([sys.executable, "-m", "ringreduce.bench", *argv])
    assert done.returncode == 0, done.stderr
    assert [row["nbytes"] for row in json.loads(file.read_text())["results"]] == [1024, 8192, 65536]
    heading = next(line for line in done.stdout.splitlines() if "algbw" in line)
    assert heading.split()[-4:] == ["algbw", "busbw", "#wrong", "limit"]
    rows = [line.split() for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert [(row[0], row[2], row[3], row[-2]) for row in rows] == [
        (size, "float32", "sum", "0") for size in ("1024", "8192", "65536")
    ]


@pytest.mark.parametrize("command", [main, tune], ids=["bench", "tune"])
def test_ranks_of_another_launcher_are_bound_by_it(
    command: Callable[[Sequence[str]], int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "1"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "4")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert command([*(["allreduce"] if command is main else []), "--bind", "none"]) == 2
    said = capsys.readouterr().err
    assert "--bind none inside a job of 4 ranks (openmpi): leave it out, the launcher binds its ranks" in said


@pytest.mark.parametrize(("words", "shared"), [([], False), (["--bin", "none"], True), (["--bind=none"], True)])
def test_own_ranks_are_bound_as_the_user_says(words: list[str], shared: bool, tmp_path: Path) -> None:
    if cores_of(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks have the same core here anyway")
    file = tmp_path / "rows.json"
    argv = ["allreduce", "-np", "2", "--sizes", "8", "--no-limit", *QUICK, "--json", str(file), *words]
    completed([sys.executable, "-m", "ringreduce.bench", *argv], check=True)
    first, second = json.loads(file.read_text())["meta"]["binding"]
    assert (first == second) is shared


def test_a_shell_within_a_job_of_one_rank_starts_its_own_ranks(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    argv = ["allreduce", "-np", "2", "--sizes", "64", "--no-limit", *QUICK, "--json", str(file)]
    done = completed([sys.executable, "-m", "ringreduce.bench", *argv], env=clean_environment() | SLURM_SHELL)
    assert done.returncode == 0, done.stderr
    assert [row["ranks"] for row in json.loads(file.read_text())["results"]] == [2]


@pytest.mark.parametrize("command", [main, tune], ids=["bench", "tune"])
def test_the_one_rank_of_a_job_starts_ranks_where_several_or_hosts_are_asked_for(
    command: Callable[[Sequence[str]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SLURM_SHELL.items():
        monkeypatch.setenv(name, value)
    begun: list[Sequence[str]] = []
    monkeypatch.setattr(start.ringrun, "main", lambda argv: begun.append(argv) or 7)
    collective = ["allreduce"] if command is main else []
    for words in (["-np", "2", "--bind", "none"], ["-H", "other:1"]):
        assert command([*collective, *words]) == 7
    assert [list(argv[:2]) for argv in begun] == [["-np", "2"], ["-np", "1"]]


def bench_with_a_lie(*commands: Sequence[str]) -> list[int]:
    """As bench(), with one element of rank 1's result changed."""
    honest = loops.CoreLoop.once

    def once(self: loops.CoreLoop) -> loops.Array:
        output = honest(self)
        if ringreduce.rank() == 1:
            output[-1] += 1
        return output

    loops.CoreLoop.once = once  # type: ignore[method-assign]
    return bench(*commands)


@pytest.mark.parametrize("colour", ["", "1"])
def test_a_reader_that_has_gone_ends_it_quietly(colour: str, tmp_path: Path) -> None:
    """It goes before there is anything to read. With a file to write, all sizes are measured nevertheless."""
    file = tmp_path / "rows.json"
    command = f"{shlex.quote(sys.executable)} -m ringreduce.bench allreduce -np 2 --sizes 8,16,32,64,128 --iters 2"
    for more in ("", f"--json {file}"):
        pipe = f"{command} {more} | true; exit ${{PIPESTATUS[0]}}"
        done = completed(["bash", "-c", pipe], env={**os.environ, "FORCE_COLOR": colour})
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(json.loads(file.read_text())["results"]) == 5


def test_a_wrong_result_is_counted_and_ends_with_status_1(run_ranks: RunRanks, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    checked = ["allreduce", "--sizes", "64,8K", "--json", str(file)]
    unchecked = ["allreduce", "--sizes", "64", "--no-check"]
    assert run_ranks(bench_with_a_lie, 2, args=(checked, unchecked)) == [[1, 0]] * 2
    assert [row["wrong"] for row in rows_of(file, 2)] == [2, 2]  # before the timed calls, and after them


def bench_with_a_late_lie(*commands: Sequence[str]) -> list[int]:
    """As bench(), where rank 1 gets a wrong element once the first call of a size is over."""
    honest, loops_seen = loops.CoreLoop.once, set()

    def once(self: Any) -> Any:
        output = honest(self)
        if ringreduce.rank() == 1 and id(self) in loops_seen:
            output[-1] += 1
        loops_seen.add(id(self))
        return output

    loops.CoreLoop.once = once  # type: ignore[method-assign]
    return bench(*commands)


def test_a_result_that_is_wrong_after_the_first_call_is_counted(run_ranks: RunRanks, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    checked = ["allreduce", "--sizes", "64", "--json", str(file)]
    assert run_ranks(bench_with_a_late_lie, 2, args=(checked,)) == [[1]] * 2
    assert [row["wrong"] for row in rows_of(file, 2)] == [1]


def bench_with_little_memory_on_rank_1(argv: Sequence[str]) -> int:
    """As bench(), where one rank sees 1 MiB of memory."""
    if os.environ["RINGREDUCE_RANK"] == "1":
        memory.available = lambda: 1 << 20
    return main([*argv, *QUICK])


def test_a_size_without_room_is_refused_on_all_ranks(run_ranks: RunRanks, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    argv = ["allreduce", "--sizes", "8,256K,8", "--no-limit", "--json", str(file)]
    assert run_ranks(bench_with_little_memory_on_rank_1, 2, args=(argv,)) == [0, 0]
    file.unlink()
    broadcast = ["broadcast", "--sizes", "256K", "--json", str(file)]  # the limit has an output of its own
    assert run_ranks(bench_with_little_memory_on_rank_1, 2, args=(broadcast,)) == [2, 2]
    for more in (["--limit"], ["--no-in-place"], ["--sizes", "512K"]):  # each makes it more
        assert run_ranks(bench_with_little_memory_on_rank_1, 2, args=([*argv, *more],)) == [2, 2]
        assert not file.exists()


def test_a_size_without_room_says_so() -> None:
    said = memory.without_room(parse(["allgather", "--sizes", "8,4000G"]), ranks=4, here=2)
    assert re.fullmatch(
        r"ringreduce bench: a size of 4294967296000 bytes takes 12000\.0 GiB of this host's memory, "
        r"of which \d+\.\d GiB are free",
        said,
    )
    assert memory.without_room(parse(["allreduce", "--sizes", "8"]), ranks=2, here=2) == ""


NEED = {  # GiB of two ranks, for 1 GiB each
    "allreduce": 6,  # each: the operand, the limit's, a copy from which its input is rewritten
    "allreduce --no-limit": 4,  # the operand, such a copy
    "allreduce --no-in-place": 10,
    "allreduce --dtype bfloat16": 4,
    "allreduce --level python": 2,
    "allreduce --level python --no-in-place": 8,  # two operands, the checked result, the next call's
    "allreduce --level python --no-in-place --no-check": 6,
    "allgather --level python": 7,
    "broadcast": 8,  # the limit's has an output of its own
    "reducescatter": 8,
}


@pytest.mark.parametrize("words", NEED)
def test_all_that_a_rank_allocates_is_counted(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    options = parse([*words.split(), "--sizes", "8,1G"])
    monkeypatch.setattr(memory, "available", lambda: NEED[words] << 30)
    assert memory.without_room(options, ranks=2, here=2) == ""
    monkeypatch.setattr(memory, "available", lambda: (NEED[words] << 30) - 1)
    assert f"takes {NEED[words]}.0 GiB" in memory.without_room(options, ranks=2, here=2)


@pytest.mark.parametrize(
    ("ranks", "own_ms", "wanted_ms"),
    [(2, 1.0, 1.0), (8, 0.01, 0.04), (8, 1.0, 4.0), (8, 20.0, 29.0)],  # what is longer than a slice has most in it
)
def test_the_limit_has_the_loads_and_stores_of_all_ranks_of_a_core(
    monkeypatch: pytest.MonkeyPatch, ranks: int, own_ms: float, wanted_ms: float
) -> None:
    group = SimpleNamespace(size=ranks, memory_limit=lambda *_: [own_ms * 1e-3] * 5)
    job = SimpleNamespace(global_process_set=SimpleNamespace(group=group), allreduce=lambda x, op: x, Max=None)
    monkeypatch.setattr(limit, "ringreduce", job)
    monkeypatch.setattr(limit, "operand", lambda *_, registered: None)
    found = limit.memory_s(COLLECTIVES["allreduce"], "float32", OPS["sum"], True, 1 << 14, 5, cores=2)
    assert found * 1e3 == pytest.approx(wanted_ms)


def bench_without_moving_anything(*commands: Sequence[str]) -> list[int]:
    """As bench(), with collectives that do nothing."""
    loops.CoreLoop.once = lambda self: self.dst  # type: ignore[method-assign]
    return bench(*commands)


def test_a_collective_that_does_nothing_is_wrong(run_ranks: RunRanks) -> None:
    commands = [[name, "--sizes", "4K"] for name in COLLECTIVES if name != "barrier"]
    assert run_ranks(bench_without_moving_anything, 2, args=commands) == [[1] * len(commands)] * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_differ_by_rank_and_position_and_survive_the_dtype(dtype: str) -> None:
    oracle = Oracle(dtype, "sum", 4)
    arrays = []
    for rank in range(4):
        array = np.zeros(10_000, DTYPES[dtype][0])
        oracle.fill(array, rank)
        want = oracle.inputs(rank, np.arange(array.size))
        assert oracle.wrong(array, 0, want.astype(np.float64)) == 0
        arrays.append(array)
    assert all(not np.array_equal(arrays[0], other) for other in arrays[1:])
    assert len(np.unique(arrays[0])) > 1
    assert oracle.wrong(arrays[0][::-1], 0, oracle.decode(arrays[0])) > 0


def test_a_sum_that_would_round_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="100 ranks are too many for an exact sum of int8"):
        Oracle("int8", "sum", 100)
    with pytest.raises(InvalidArgumentError, match="13 ranks are too many for an exact product of float32; --no-check"):
        Oracle("float32", "product", 13)


def test_only_a_sum_has_to_be_exact() -> None:
    assert Oracle("int8", "min", 100).modulus == Oracle("int8", "max", 100).modulus == 61
    assert COLLECTIVES["allgather"].oracle("uint8", "sum", 256).modulus == 61
    with pytest.raises(InvalidArgumentError, match="256 ranks are too many"):
        COLLECTIVES["allreduce"].oracle("uint8", "sum", 256)


def test_sizes_are_read_as_nccl_tests_reads_them() -> None:
    assert [nbytes(text) for text in ("8", "4K", "1M", "2g", "16MiB")] == [8, 4096, 1 << 20, 2 << 30, 16 << 20]
    assert parse(["allreduce", "-b", "8", "-e", "128M", "-f", "4"]).sizes == tuple(8 << 2 * i for i in range(13))
    for bad in ("", "x", "4Q", "-8", "1.5M"):
        with pytest.raises(InvalidArgumentError, match="a size is a number of bytes"):
            nbytes(bad)


def test_a_range_of_sizes_needs_no_smallest_but_a_largest_one() -> None:
    assert parse(["allreduce", "-e", "64"]).sizes == (8, 16, 32, 64)
    assert parse(["allreduce", "-e", "1K", "-f", "8"]).sizes == (8, 64, 512)
    assert parse(["allreduce", "-b", "4K"]).sizes == (4096,)
    assert parse(["allreduce"]).sizes == parse(["allreduce", "--sizes", "8,512,4K,64K,1M,16M,128M"]).sizes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-f", "4"], "-f needs the largest size"),
        (["-b", "8", "-f", "4"], "-f needs the largest size"),
        (["-b", ""], "a size is a number of bytes"),
        (["--sizes", "8", "-e", "64"], "--sizes and -e both say which sizes; give one of them"),
        (["--rounds", "3"], "--rounds is for a comparison: say with whom by --vs"),
        (["--deadline", "120"], "--deadline is for a comparison"),
        (["--html", ""], "--html is for a comparison"),
        (["--vs", "gloo", "--level", "c"], "leave out --level with --vs"),
        (["--vs", "gloo", "--no-limit"], "leave out --limit and --no-limit with --vs"),
        (["--vs", "gloo", "--plot", "a.svg", "--html", "./a.svg"], "--plot and --html both name ./a.svg"),
        (["-H", "localhost:2", "-p", "22"], "--ssh-port is for other hosts, and this is the only one"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(said)):
        parse(["allreduce", *words])


def test_a_barrier_has_no_size() -> None:
    assert parse(["barrier"]).sizes == (0,)
    for words, option in ((["--sizes", "8"], "--sizes"), (["-b", "8"], "-b")):
        with pytest.raises(InvalidArgumentError, match=f"a barrier has no size: leave out {option}$"):
            parse(["barrier", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-np", "0"], "-np/--np: must be at least 1"),
        (["-np", "0", "--vs", "gloo"], "-np/--np: must be at least 1"),
        (["--vs", "gloo", "--deadline", "0"], "--deadline: must be a number of seconds above 0"),
    ],
)
def test_there_is_a_rank_and_some_time(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["allreduce", *words])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_picture_needs_somebody_to_compare_with(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allreduce", "--plot", "x.png"]) == 2
    assert "--vs" in capsys.readouterr().err
    with pytest.raises(InvalidArgumentError, match="no peer 'gluu'; there are gloo"):
        find(["gluu"])
    with pytest.raises(InvalidArgumentError, match="no peer ''; there are gloo"):
        find(parse(["allreduce", "--vs", ""]).vs)


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    words = ["allreduce", "-np", "2", "--sizes", "8", *QUICK, "--json"]
    for file, reason in ((tmp_path / "no" / "rows.json", "there is no folder"), (tmp_path, "it is a folder")):
        done = completed([sys.executable, "-m", "ringreduce.bench", *words, str(file)])
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count(f"InvalidArgumentError: {file}: cannot be written: {reason}") >= 2, done.stderr
        assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_p99_is_the_nearest_rank() -> None:
    for size in range(1, 102):
        samples = np.arange(size, dtype=np.float64)
        assert samples[0] <= samples[size // 2] <= p99(samples) <= samples[-1]
        assert p99(samples) == size - 1 - (size >= 100)
    assert [p99(range(size)) for size in (200, 250, 1000)] == [197, 247, 989]  # ceil(0.99 size) - 1


def test_rows_are_aligned_with_the_heading() -> None:
    options = parse(["reducescatter"])
    row = Row(1 << 27, 1 << 25, False, "ring", 9000.25, 10000.5, 12345.75, 13.42, 13.42, 0, 0.875)
    line = table.line(options, row)
    assert len(line) == len(table.HEADINGS[0])
    assert line.split() == [
        "134217728",
        "33554432",
        "float32",
        "sum",
        "10000.5",
        "12345.8",
        "9000.2",
        "13.42",
        "13.42",
        "0",
        "0.88",
    ]
    assert table.line(options, replace(row, fraction_of_limit=None)).split()[-2:] == ["0", "N/A"]
    assert table.tail([row]).startswith("# Out of bounds values : 0 OK")
