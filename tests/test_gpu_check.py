"""benchmarks/gpu.py without a GPU: parts and their deadlines, the record, the table, the promises, the arguments."""

import json
import os
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def code(text: str) -> list[str]:
    return [sys.executable, "-S", "-c", text]


def test_parts_run_whatever_became_of_those_before(tmp_path: Path) -> None:
    from gpus.parts import Part, run_all

    rows = tmp_path / "rows.jsonl"
    chosen = [
        Part("fails", code("print('because'); raise SystemExit(3)"), 60),
        Part("is not there", ["/nonexistent/program"], 60),
        Part("dies", code("import os; os.kill(os.getpid(), 11)"), 60),
        Part(
            "knows its environment",
            code(f"import os; open({str(rows)!r}, 'w').write(os.environ['X'])"),
            60,
            1,
            {"X": "y"},
        ),
    ]
    heard: list[str] = []
    outcomes = run_all(chosen, tmp_path, 120, lambda outcome: heard.append(outcome.name))
    assert [one.status for one in outcomes] == [3, 127, -signal.SIGSEGV, 0]
    assert heard == [part.name for part in chosen]
    assert outcomes[0].output == "because"
    assert "No such file" in outcomes[1].output
    assert [one.verdict for one in outcomes] == ["failed (3)", "failed (127)", "failed (-11)", "ok"]
    assert rows.read_text() == "y"
    assert (tmp_path / "fails.log").read_text() == "because\n"


def test_a_part_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    from gpus.parts import Part, run

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The child holds the pipe's end open for as long as it lives.
    child = f"import signal; end = open({str(fifo)!r}, 'w'); print('here', file=end, flush=True); signal.pause()"
    parent = f"import signal, subprocess; subprocess.Popen({code(child)!r}); print('waits', flush=True); signal.pause()"
    watcher = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    outcome = run(Part("hangs", code(parent), 2.0), tmp_path, 2.0)
    assert outcome.late
    assert outcome.status == -signal.SIGKILL
    assert outcome.verdict == "not done after 2 s"
    assert outcome.output == "waits"
    os.set_blocking(watcher, True)
    with open(watcher, "rb") as end:
        assert end.read() == b"here\n"  # and then the end of the file: nobody holds it any more


def test_time_is_kept_for_the_parts_to_come(tmp_path: Path) -> None:
    from gpus.parts import Part, run_all

    hang = code("import signal; signal.pause()")
    outcomes = run_all([Part("takes all", hang, 60, 1.0), Part("comes", code("print('ran')"), 60, 30.0)], tmp_path, 32)
    assert outcomes[0].late
    assert outcomes[0].seconds < 20  # 2 s, not 32: 30 are the next one's
    assert (outcomes[1].status, outcomes[1].output) == (0, "ran")


def allreduce(
    library: str, road: str | None, ranks: int, nbytes: int, time_us: float, wrong: int = 0
) -> dict[str, Any]:
    return {
        "what": "allreduce",
        "library": library,
        "road": road,
        "ranks": ranks,
        "nbytes": nbytes,
        "time_us": time_us,
        "wrong": wrong,
    }


def kernel(what: str, nbytes: int, fraction: float) -> dict[str, Any]:
    return {
        "what": what,
        "list": "one",
        "ranks": 1,
        "nbytes": nbytes,
        "moved_nbytes": 2 * nbytes,
        "time_us": 10.0,
        "GBps": 100.0,
        "limit_GBps": 100.0 / fraction,
        "fraction": fraction,
        "wrong": 0,
    }


ROWS = [
    {"what": "limit", "name": "copy", "GBps": 4000.0, "wrong": 0},
    {"what": "limit", "name": "to host", "GBps": 50.0, "wrong": 0},
    {"what": "limit", "name": "to device", "GBps": 40.0, "wrong": 0},
    allreduce("ringreduce", "ipc", 2, 64 * MIB, 100.0),
    allreduce("ringreduce", "staged", 2, 64 * MIB, 4000.0),
    allreduce("gloo", None, 2, 64 * MIB, 5000.0),
    kernel("pack", MIB, 0.2),
    kernel("pack", 16 * MIB, 0.9),
    kernel("unpack", 64 * MIB, 0.8),
    {"what": "step", "way": "eager", "ranks": 1, "model": "resnet50", "time_us": 1000.0, "waits": [], "wrong": 0},
    {
        "what": "step",
        "way": "eager",
        "ranks": 2,
        "model": "resnet50",
        "time_us": 1500.0,
        "waits": ["cudaStreamSynchronize"],
        "calls": {"cudaStreamSynchronize": 1, "cudaLaunchKernel": 12},
        "wrong": 0,
    },
]


def test_limits_are_those_of_the_same_run() -> None:
    from gpus import record

    rows = record.with_limits(ROWS)
    ipc, staged = (row for row in rows if row.get("road"))
    # 2 n S bytes of memory, and n S bytes over the slower direction of the link.
    assert ipc["GBps"] == pytest.approx(4 * 64 * MIB / 100.0 * 1e-3)
    assert ipc["fraction"] == pytest.approx(4 * 64 * MIB / 100.0 * 1e-3 / 4000)
    assert staged["fraction"] == pytest.approx(2 * 64 * MIB / 4000.0 * 1e-3 / 40)
    assert ipc["times_gloo"] == pytest.approx(50)
    assert [row["times_alone"] for row in rows if row["what"] == "step"] == [1.0, 1.5]
    assert "fraction" not in ROWS[3], "the rows that were given are left as they were"


def test_promises_are_judged_by_the_least_of_the_large_sizes() -> None:
    from gpus import record

    text = record.judgements(record.with_limits(ROWS))
    assert "pack: 0.90 at least, 0.85 wanted: reached" in text
    assert "unpack: 0.80 at least, 0.85 wanted: NOT reached" in text
    assert "ipc: 0.67 at least, 0.8 wanted: NOT reached" in text
    assert "gloo: 50.00x at least, 30x wanted: reached" in text
    assert "host waits in a steady step: cudaStreamSynchronize" in text
    assert "wrong elements: 0" in text
    assert "staged: not measured (wanted 0.85)" in record.judgements([])
    assert "wrong elements: 3" in record.judgements([allreduce("gloo", None, 2, 8, 1.0, wrong=3)])


def test_record_and_table(tmp_path: Path) -> None:
    from gpus import record
    from gpus.parts import Outcome

    rows = record.with_limits(ROWS)
    outcomes = [Outcome("build", 0, 61.0, False, "x"), Outcome("tests", -9, 90.0, True, "hung here")]
    meta = {"gpus": ["NVIDIA H200 (SXM)"], "cuda": "13.0", "torch": "2.11.0", "date": "2026-11-22T00:00:00+00:00"}
    whole = record.make(meta, outcomes, rows)
    copies = tmp_path / "out"
    copies.mkdir()
    files = record.write(whole, tmp_path / "results", date(2026, 11, 22), copies)
    assert [file.name for file in files] == [f"2026-11-22-nvidia-h200-sxm.{ext}" for ext in ("json", "md")]
    assert sorted(file.name for file in copies.iterdir()) == sorted(file.name for file in files)
    read = json.loads(files[0].read_text())
    assert read["results"] == rows
    assert read["parts"][1] == {
        "name": "tests",
        "verdict": "not done after 90 s",
        "status": -9,
        "seconds": 90.0,
        "output": "hung here",
    }
    assert read["parts"][0]["output"] == ""
    page = files[1].read_text()
    assert "| all-reduce, 2 ranks, road ipc | 64 MiB | 100.00 | 2684.4 | 0.671 | 50.0 | 0 |" in page
    assert "| tests | not done after 90 s | 90.0 |" in page
    assert "* CUDA calls of a steady step on 2 ranks, by the profiler: cudaLaunchKernel 12, cudaStream" in page
    text = record.table(outcomes, rows)
    assert text.splitlines()[-1] == "wrong elements: 0"
    assert "pack one " in text
    assert "1.0 MiB" not in text, "small sizes are in the record alone"


def test_rows_before_a_torn_line_are_read(tmp_path: Path) -> None:
    from gpus import record

    assert record.read_rows(tmp_path / "absent") == []
    file = tmp_path / "rows"
    file.write_text('a warning\n{"what": "limit"}\n{"what": "st')
    assert record.read_rows(file) == [{"what": "limit"}]


def test_shapes_are_the_models() -> None:
    from gpus import shapes

    resnet, bert = shapes.counts(shapes.resnet50()), shapes.counts(shapes.bert_base())
    assert (len(resnet), sum(resnet)) == (161, 25_557_032)
    assert (len(bert), sum(bert)) == (199, 109_482_240)
    tiny = shapes.lists()["500-tiny"]
    assert len(tiny) == 500
    assert 4 * sum(tiny) >= 16 * MIB


def test_plan() -> None:
    import gpu

    everything = gpu.parts(gpu.WORDS, 1)
    names = [part.name for part in everything]
    assert names[:5] == ["build", "tests", "tests alone", "memcheck", "racecheck"]
    files = [word.rpartition("/")[2] for part in everything[1:3] for word in part.command if word.endswith(".py")]
    assert sorted(files) == sorted(file.name for file in (ROOT / "tests").glob("test_cuda_*.py"))
    assert {"allreduce 2 ipc", "allreduce 4 staged", "gloo 4", "step 1", "step 4", "kernels", "limits"} <= set(names)
    assert not any("nccl" in name for name in names), "NCCL refuses two ranks on one GPU"
    assert "nccl 2" in [part.name for part in gpu.parts(["peers"], 2)]
    assert len(set(names)) == len(names)
    assert sum(part.least_s for part in everything) < gpu.TOTAL_S < 480
    ipc = next(part for part in everything if part.name == "allreduce 2 ipc")
    assert ipc.env["RINGREDUCE_CUDA_ROAD"] == "ipc"
    assert [part.name for part in gpu.parts(["limits", "build"], 1)] == ["build", "limits"]


def test_status() -> None:
    import gpu
    from gpus.parts import Outcome

    good = Outcome("build", 0, 1.0, False, "")
    assert gpu.status([good], [{"wrong": 0}, {}]) == 0
    assert gpu.status([good], [{"wrong": 1}]) == 1
    assert gpu.status([good, Outcome("tests", 1, 1.0, False, "")], []) == 1


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--only", "build,bulid"], "bulid: there are build"), ([], "no CUDA device")]
)
def test_arguments_and_no_gpu(arguments: list[str], said: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments]
    environ = {**os.environ, "RINGREDUCE_CUDA_LIBRARY": "libnothing.so.1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_what_ranks_measure_is_told_from_what_is_wrong() -> None:
    torch = pytest.importorskip("torch")
    from gpus import pattern

    inputs = []
    for rank in range(4):
        inputs.append(torch.empty(5000))
        pattern.fill(inputs[-1], rank, 3)
    mean = torch.stack(inputs).double().mean(0).float()
    assert pattern.wrong(mean, 4, 3, 4) == 0
    assert pattern.wrong(mean, 4, 2, 4) > 4000
    assert pattern.wrong(inputs[0], 4, 3, 4) > 4000
    mean[17] += 0.25
    assert pattern.wrong(mean, 4, 3, 4) == 1
    assert not torch.equal(inputs[0], inputs[1])
