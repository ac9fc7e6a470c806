"""benchmarks/gpu.py without a GPU: parts and their deadlines, the record, the table, the promises, the arguments."""

import json
import os
import re
import signal
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from processes import completed

ROOT = Path(__file__).resolve().parents[3]
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
    library: str, path: str | None, ranks: int, nbytes: int, time_us: float, wrong: int = 0
) -> dict[str, Any]:
    return {
        "what": "allreduce",
        "library": library,
        "path": path,
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
    ipc, staged = (row for row in rows if row.get("path"))
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
    assert "| all-reduce, 2 ranks, path ipc | 64 MiB | 100.00 | 2684.4 | 0.671 | 50.0 | 0 |" in page
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
    smoke = ["smoke ipc lazy", "smoke staged lazy", "smoke ipc eager"]
    first = ["build", "build rr_gpu", *smoke, "probe", "kernels right", "kernels", "tests"]
    assert names[: len(first)] == first, "by what matters"
    assert names[-2:] == ["memcheck", "racecheck"]
    tests = [part for part in everything if "pytest" in part.command]
    files = [word.rpartition("/")[2] for part in tests for word in part.command if word.endswith(".py")]
    assert all(part.interrupt and part.needs.endswith(".so") for part in tests)
    assert sorted(files) == sorted(
        file.name for pattern in ("test_cuda_*.py", "test_*_on_fake_driver*.py") for file in gpu.TESTS.glob(pattern)
    )
    assert {"allreduce 2 ipc", "allreduce 4 staged", "gloo 4", "step 1", "step 4", "kernels", "limits"} <= set(names)
    assert not any("nccl" in name for name in names), "NCCL refuses two ranks on one GPU"
    assert "nccl 2" in [part.name for part in gpu.parts(["peers"], 2)]
    assert len(set(names)) == len(names)
    assert sum(part.least_s for part in everything) < gpu.TOTAL_S < 480
    ipc = next(part for part in everything if part.name == "allreduce 2 ipc")
    assert ipc.env["RINGREDUCE_GPU_PATH"] == "ipc"
    assert [part.name for part in gpu.parts(["limits", "build"], 1)] == ["build", "build rr_gpu", "limits"]


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
    done = completed(command, env=environ)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_what_cannot_run_says_why_and_an_interrupted_part_how_far_it_came(tmp_path: Path) -> None:
    from gpus.parts import Part, run_all

    slow = "import signal\nprint('so far', flush=True)\ntry: signal.pause()\nexcept KeyboardInterrupt: print('ended')"
    chosen = [
        Part("skipped", code("raise SystemExit(1)"), 60, skip="nobody wants it", word="a"),
        Part("lacks", code("raise SystemExit(0)"), 60, needs=str(tmp_path / "absent.so"), word="a"),
        Part("interrupted", code(slow), 2, 2, interrupt=True, word="b"),
        Part("too late", code("raise SystemExit(0)"), 60, word="c"),
    ]
    outcomes = run_all(chosen, tmp_path, 2)
    assert [one.status for one in outcomes] == [0, 1, -signal.SIGKILL, 1]
    assert outcomes[0].verdict == "skipped: nobody wants it"
    assert outcomes[1].verdict == "not run: no absent.so"
    assert outcomes[2].output.splitlines() == ["so far", "ended"]
    assert outcomes[3].verdict == "not run: no time left"
    from gpus import record

    assert record.failures(outcomes)[-1] == ('not done: lacks, interrupted, too late; go on with ARGS="--only a,b,c"')


def test_the_line_that_says_it_is_found(tmp_path: Path) -> None:
    from gpus.parts import Part, run

    text = "print('x.cc:3: error: no such thing')\nfor i in range(200): print('compiling', i)\nraise SystemExit(1)"
    outcome = run(Part("build", code(text), 60), tmp_path, 60)
    assert "x.cc:3: error: no such thing" in outcome.output.splitlines()
    assert "compiling 199" in outcome.output.splitlines()
    assert "compiling 100" not in outcome.output.splitlines()
    assert outcome.digest() == ["x.cc:3: error: no such thing"]


def test_a_later_run_adds_to_the_record(tmp_path: Path) -> None:
    from gpus import record
    from gpus.parts import Outcome

    meta = {"gpus": ["GPU"], "cuda": "13.0", "torch": "2.11.0", "date": "2026-11-22T00:00:00+00:00"}
    probe = {"what": "probe", "name": "pieces", "good": False, "answer": "one | two", "part": "probe"}
    copy = {**ROWS[0], "part": "limits"}
    ipc = {**ROWS[3], "part": "allreduce 2 ipc"}
    counted = {"what": "kernels", "gpu": "GPU", "cases": 7, "wrong": 0, "part": "kernels right"}
    first = [Outcome("probe", 1, 1.0, False, ""), Outcome("limits", 0, 1.0, False, "")]
    record.write(record.make(meta, first, [probe, copy, counted]), tmp_path, date(2026, 11, 22))
    later = [Outcome("probe", 0, 2.0, False, ""), Outcome("allreduce 2 ipc", 0, 1.0, False, "")]
    rows = [{**probe, "good": True}, ipc]
    files = record.write(record.make(meta, later, rows), tmp_path, date(2026, 11, 22), add=True)
    whole = json.loads(files[0].read_text())
    assert [(part["name"], part["status"]) for part in whole["parts"]] == [
        ("limits", 0),
        ("probe", 0),
        ("allreduce 2 ipc", 0),
    ]
    assert [row["good"] for row in whole["results"] if row["what"] == "probe"] == [True]
    fractions = [row["fraction"] for row in whole["results"] if row["what"] == "allreduce"]
    assert fractions == [pytest.approx(4 * 64 * MIB / 100.0 * 1e-3 / 4000)], "of the earlier run's limit"
    page = files[1].read_text()
    assert "| pieces | yes | one / two |" in page
    text = record.table(first, [probe, copy, counted])
    assert "probe pieces FAILED: one | two" in text
    assert "probes: 0 of 1 hold" in text


def test_probes_that_hang_or_die_are_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gpus import probes

    good = json.dumps({"what": "probe", "name": "good", "good": True, "answer": "yes"})
    program = tmp_path / "program"
    lines = [
        "#!/bin/sh",
        'case "$2" in',
        '"") echo good; echo hangs; echo dies;;',
        f"good) echo '{good}';;",
        f"hangs) echo '{good}'; exec sleep 1000;;",
        "dies) echo because >&2; kill -9 $$;;",
        "esac",
    ]
    program.write_text("\n".join(lines) + "\n")
    program.chmod(0o755)
    out = tmp_path / "rows"
    assert probes.main([str(program), "--out", str(out), "--deadline-s", "3"]) == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["name"], row["good"]) for row in rows] == [
        ("good", True),
        ("good", True),
        ("hangs", False),
        ("dies", False),
    ]
    assert rows[2]["answer"] == "did not end within 3 s"
    assert rows[3]["answer"] == "exit status -9: because"
    assert "2 of 3 probes failed" in capsys.readouterr().out


def test_a_rehearsal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole of gpu-check on the fake driver, with a part that fails and one that hangs before the others."""
    pytest.importorskip("torch")
    import cuda_devices
    import gpu
    from gpus.parts import Part

    cuda_devices.fake_environment()
    planned = gpu.parts

    def parts(*args: Any) -> list[Part]:
        broken = [
            Part("fails", code("print('Error: because'); raise SystemExit(3)"), 60, word="build"),
            Part("hangs", code("import signal; print('waits', flush=True); signal.pause()"), 1.0, 0.5, word="peers"),
        ]
        return [*broken, *planned(*args)]

    cuda_devices.probe.cache_clear()
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(gpu, "parts", parts)
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "logs")
    monkeypatch.setenv("OUT", str(out))
    monkeypatch.setenv("RINGREDUCE_CUDA_LIBRARY", "")
    monkeypatch.chdir(ROOT)
    only = "build,smoke,probe,kernels,limits,allreduce,sanitize"
    try:
        status = gpu.main(["--rehearse", "--only", only, "--results", str(tmp_path / "results")])
    finally:
        cuda_devices.probe.cache_clear()
    text = capsys.readouterr().out
    assert status == 1, "a part failed"
    (file,) = (tmp_path / "results").glob("*-fake-gpu.json")
    whole = json.loads(file.read_text())
    verdicts = {part["name"]: part["verdict"] for part in whole["parts"]}
    assert verdicts.pop("fails") == "failed (3)"
    assert re.fullmatch(r"not done after \d+ s", verdicts.pop("hangs"))
    skipped = [name for name, verdict in verdicts.items() if verdict.startswith("skipped: ")]
    assert skipped == ["build", "build rr_gpu", "limits", "memcheck", "racecheck"]
    assert {name: verdict for name, verdict in verdicts.items() if name not in skipped} == dict.fromkeys(
        [
            *("smoke ipc lazy", "smoke staged lazy", "smoke ipc eager", "probe", "kernels right", "kernels"),
            *("allreduce 2 ipc", "allreduce 2 staged"),
        ],
        "ok",
    ), text
    rows = whole["results"]
    assert sum(row["what"] == "probe" for row in rows) > 5
    assert {(row["path"], row["nbytes"]) for row in rows if row["what"] == "allreduce"} >= {("ipc", 8), ("staged", 8)}
    assert all(row["operations"] for row in rows if row["what"] == "allreduce")
    assert not any(row.get("wrong") for row in rows)
    page = file.with_suffix(".md").read_text()
    assert "| fails | failed (3) |" in page
    assert "| all-reduce, 2 ranks, path ipc | 8 B |" in page
    assert sorted(one.name for one in out.iterdir()) == sorted(
        [file.name, file.with_suffix(".md").name, "gpu-check-logs.tar.gz"]
    )
    assert text.rstrip().splitlines()[-5:] == [
        "fails: failed (3)",
        "    Error: because",
        "hangs: not done after 1 s",
        "    waits",
        'not done: hangs; go on with ARGS="--only peers"',
    ]
    assert len(text) < 12_000, "what is shown of a run's output"


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
