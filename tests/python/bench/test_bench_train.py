"""`ringreduce bench train`: the schema, the comparison of losses, absent modes, deadlines, and the arithmetic.

The modes at the end of the file misbehave; workers import this file to find them, so torch is imported by tests only.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import os
import signal
import struct
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ringreduce.bench.train import batches, curves, data, figures, job, losses, results
from ringreduce.bench.train.cli import main
from ringreduce.bench.train.figures import Cell
from ringreduce.bench.train.frameworks.torch import Torch
from ringreduce.bench.train.job import Outcome
from ringreduce.bench.train.modes import METHODS, MODES
from ringreduce.bench.train.modes.horovod import Horovod
from ringreduce.bench.train.modes.independent import Connected
from ringreduce.bench.train.modes.methods import LocalSgd
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.bench.train.modes.ringreduce import Ringreduce
from ringreduce.bench.train.options import parse
from ringreduce.errors import Error, InvalidArgumentError, UnavailableError

if TYPE_CHECKING:
    from torch import nn

    from ringreduce.bench.train.options import Options
    from ringreduce.bench.train.spec import Spec

HERE = Path(__file__).resolve().parent
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

QUICK = ["--data", "synthetic", "--batch-size", "33", "--check-steps", "3", "--seconds", "0.05", "--rounds", "1"]
"""33: the shares of two ranks differ."""

SCHEMA = {
    "mode": str,
    "processes": int,
    "threads": (int, type(None)),
    "status": str,
    "samples_per_s": (float, type(None)),
    "to_single": (float, type(None)),
    "efficiency": (float, type(None)),
    "fraction_of_bound": (float, type(None)),
    "step_ms": (dict, type(None)),
    "peak_memory_MiB": (float, type(None)),
    "step_nbytes": (float, type(None)),
    "step_wire_nbytes": (float, type(None)),
    "rounds": list,
    "samples_per_s_per_process": (dict, type(None)),
    "loss": (float, type(None)),
    "loss_difference": (float, type(None)),
    "same_loss": (bool, type(None)),
}


def bench(folder: Path, *argv: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """(exit status, the JSON, its results by mode), the latter checked against the schema."""
    file = folder / "train.json"
    status = main([*QUICK, *argv, "--json", str(file)])
    document = json.loads(file.read_text())
    assert document.keys() == {"meta", "results", "absent"}
    for row in document["results"]:
        assert row.keys() == SCHEMA.keys()
        assert all(isinstance(row[key], kind) for key, kind in SCHEMA.items()), row
    return status, document, {row["mode"]: row for row in document["results"]}


@needs_torch
def test_modes_reach_the_same_loss_and_an_absent_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)  # as if it were not installed
    vs = "single,ringreduce-shard,ddp-ringreduce,ddp-gloo,horovod"
    status, document, rows = bench(tmp_path, "--vs", vs, "--optimizer", "adam")
    said = capsys.readouterr()
    assert status == 0, said.err
    assert list(rows) == ["single", "independent", "ringreduce", "ringreduce-shard", "ddp-ringreduce", "ddp-gloo"]
    assert document["meta"]["optimizer"] == "adam"
    assert {row["status"] for row in rows.values()} == {"ok"}
    for row in rows.values():
        (cell,) = row["rounds"]
        assert row["samples_per_s"] == cell["samples_per_s"] > 0
        assert row["peak_memory_MiB"] > 10 * row["processes"]
        assert len(cell["losses"]) == 4
        assert cell["threads"] == [row["threads"]] * row["processes"]
        assert row["same_loss"] is True
        assert row["step_ms"]["total"] == pytest.approx(33 / row["samples_per_s"] * 1e3)
    assert rows["ringreduce"]["loss"] == pytest.approx(rows["single"]["loss"], rel=1e-3)
    with_sgd = job.run(MODES["single"], parse(QUICK), "synthetic").ranks[0]["losses"][-1]
    assert with_sgd != pytest.approx(rows["single"]["loss"], rel=1e-3)  # the optimizer made a difference
    untied = rows["independent"]["rounds"][0]["losses"][-1]
    assert untied != pytest.approx(rows["single"]["loss"], rel=1e-3)  # else the comparison would show nothing
    alone, bound, ours = (rows[mode] for mode in ("single", "independent", "ringreduce"))
    assert ours["to_single"] == pytest.approx(ours["samples_per_s"] / alone["samples_per_s"])
    assert ours["fraction_of_bound"] == pytest.approx(ours["samples_per_s"] / bound["samples_per_s"])
    assert ours["step_ms"]["exposed"] == pytest.approx(ours["step_ms"]["total"] - bound["step_ms"]["total"])
    assert alone["step_ms"]["exposed"] is None

    (absent,) = document["absent"]
    assert absent["mode"] == "horovod"
    assert "does not compile against torch >= 2.1" in absent["why"]
    assert {"ranks", "model", "batch_size", "seconds", "torch", "data", "cpu"} <= document["meta"].keys()
    lines = said.out.splitlines()
    assert next(line for line in lines if line.split()[:1] == ["horovod"]).split()[2] == "absent"
    assert any(line.startswith("# horovod: absent, not installed; its last release") for line in lines)
    reduced = ", ".join(mode for mode in rows if mode not in ("single", "independent"))
    assert f"# loss after 3 steps: {reduced} as single, within 0.001\n" in said.out
    assert "# loss before the first step: independent as single, within 0.001\n" in said.out
    table = [line for line in lines if line.startswith(("# mode", "  "))]
    assert len({len(line) for line in table}) == 1


@needs_torch
def test_a_mode_that_does_not_reduce_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODES, "ringreduce", Forgetful())
    status, _, rows = bench(tmp_path, "--vs", "single")
    assert status == 1
    assert [row["same_loss"] for row in rows.values()] == [True, True, False]
    said = capsys.readouterr().out
    assert "# ringreduce: WRONG, its loss differs from that of single by" in said
    assert next(line for line in said.splitlines() if line.startswith("  ringreduce")).endswith("WRONG")


def test_a_mode_that_hangs_is_ended_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("torch") is None:
        monkeypatch.setattr(Torch, "need", lambda self: None)
        monkeypatch.setattr(Torch, "versions", lambda self: {"torch": "none"})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for mode in ("independent", "ringreduce"):
        monkeypatch.setitem(MODES, mode, Hanging())
    status, _, rows = bench(tmp_path, "--vs", "none", "--timeout", "3")
    assert status == 1
    for row in rows.values():
        (cell,) = row["rounds"]
        assert (row["status"], cell["status"], row["samples_per_s"]) == ("timeout", "timeout", None)
        assert 3 <= cell["seconds"] < 3 + 10
    assert running(str(tmp_path)) == []
    said = capsys.readouterr()
    assert next(line for line in said.out.splitlines() if line.startswith("  ringreduce")).split()[4] == "timeout"
    assert "--- ringreduce, round 1: timeout after" in said.err


def running(word: str) -> list[str]:
    """The command lines of living processes that mention a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if word in line:
            found.append(line.replace("\0", " "))
    return found


@needs_torch
def test_a_method_that_fails_or_diverges_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(MODES, "diloco", Failing())
    status, _, rows = bench(tmp_path, "--method", "diloco")
    assert (status, rows["diloco"]["status"], rows["ringreduce"]["status"]) == (1, "failed", "ok")
    monkeypatch.setitem(MODES, "diloco", Diverging())
    status, _, rows = bench(tmp_path, "--method", "diloco", "--every", "2")
    assert (status, rows["diloco"]["status"], rows["diloco"]["same_loss"]) == (1, "ok", True)
    assert rows["diloco"]["rounds"][0]["curve"][-1][1] is None, "JSON has no NaN"


def test_a_mode_that_fails_says_why() -> None:
    outcome = job.run(Failing(), parse(QUICK), "synthetic")
    assert (outcome.status, outcome.ranks) == ("failed", [])
    assert "RuntimeError: no such luck" in outcome.output
    outcome = job.run(Missing(), parse(QUICK), "synthetic")
    assert outcome.status == "failed"
    assert "cannot run 'no-such-launcher'" in outcome.output


def test_a_rank_that_says_no_figures_has_failed() -> None:
    outcome = job.run(Silent(), parse(QUICK), "synthetic")
    assert (outcome.status, outcome.ranks) == ("failed", [])
    assert "off I go" in outcome.output
    assert "exit status 0, but no figures of rank 0, 1 of 2 were found in its output" in outcome.output


def test_figures_are_found_behind_a_launchers_tags(capsys: pytest.CaptureFixture[str]) -> None:
    mark = results.new_mark()
    assert mark != results.new_mark()
    print("epoch 1 ...", end="")  # a line that the training has begun
    results.say(mark, {"rank": 0, "losses": [1.5, math.inf]})
    said = capsys.readouterr().out
    other = f'[1,1]<stdout>:{mark} {{"rank": 1, "losses": []}}\n'
    noise = f"worker {{'mark': '{mark}'}}\n{results.new_mark()} {{}}\n"
    output = f"{noise}{other}{said}the end\n"
    assert results.find(mark, output, 2) == [{"rank": 0, "losses": [1.5, math.inf]}, {"rank": 1, "losses": []}]
    assert results.without(mark, output) == f"{noise}epoch 1 ...\nthe end\n"
    with pytest.raises(Error, match="no figures of rank 2 of 3"):
        results.find(mark, output, 3)
    with pytest.raises(Error, match="a rank's figures are no JSON"):
        results.find(mark, output.replace("inf", "").replace("Infinity", ""), 2)


@needs_torch
def test_methods_send_what_they_say_and_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    every, picture = 5, tmp_path / "methods.png"
    methods = ",".join(METHODS)
    status, document, rows = bench(tmp_path, "--method", methods, "--every", str(every), "--plot", str(picture))
    said = capsys.readouterr()
    assert status == 0, said.err
    assert list(rows) == ["independent", "ringreduce", *METHODS]
    assert document["meta"]["every"] == every
    whole = 4 * 129_094  # LeNet
    assert rows["ringreduce"]["step_nbytes"] == pytest.approx(whole, rel=1e-3), "and what begins the window together"
    averaging = ("local-sgd", "diloco", "streaming", "slowmo", "easgd")
    for mode in averaging:
        assert rows[mode]["step_nbytes"] == pytest.approx(whole / every, rel=2e-3), mode
    assert 0 < rows["powersgd"]["step_nbytes"] < whole / 10
    assert rows["independent"]["step_nbytes"] < whole / 1000
    for mode, row in rows.items():
        (cell,) = row["rounds"]
        assert (row["status"], row["same_loss"], row["step_wire_nbytes"]) == ("ok", True, 0), mode
        seconds, each = zip(*cell["curve"], strict=True)
        assert sorted(seconds) == list(seconds)
        assert each[0] == pytest.approx(rows["ringreduce"]["rounds"][0]["curve"][0][1], rel=1e-5), "the same start"
    curves_of = {mode: [loss for _, loss in rows[mode]["rounds"][0]["curve"]] for mode in averaging}
    for mode, curve in curves_of.items():
        if mode != "streaming":  # whose fragments have moments of their own
            assert curve[:every] == curves_of["local-sgd"][:every], "the ranks are alone until the first averaging"
        for other in averaging:
            assert other == mode or curve[2 * every : 3 * every] != curves_of[other][2 * every : 3 * every]
    assert "fp16, int8, powersgd, local-sgd, diloco, streaming, slowmo, easgd as ringreduce" in said.out
    lines = said.out.splitlines()
    table = lines[next(at for at, line in enumerate(lines) if line.startswith("# loss against time")) + 1 :]
    assert [line.split()[0] for line in table[2:]] == [mode for mode in rows if mode != "independent"]
    assert all(len(line.split()) == 7 for line in table[2:])
    assert picture.read_bytes().startswith(b"\x89PNG\r\n")


@needs_torch
def test_windows_are_whole_periods() -> None:
    argv = ["--method", "local-sgd", "--every", "4", "--warmup", "1", "--iters", "2", "--batches-per-iter", "5"]
    outcome = job.run(MODES["local-sgd"], parse([*QUICK, *argv]), "synthetic")
    assert outcome.status == "ok", outcome.output
    for rank in outcome.ranks:
        assert [window["steps"] for window in rank["windows"]] == [8, 8]
        assert len(rank["curve"]) == 3 + 4 + 2 * 8


@needs_torch
def test_resnet50_is_timed_by_the_usual_method() -> None:
    argv = ["--model", "resnet50", "--batch-size", "1", "--iters", "2", "--batches-per-iter", "1", "--warmup", "1"]
    outcome = job.run(Ringreduce(), parse([*argv, "--check-steps", "1", "--threads", "3"]), "synthetic")
    assert outcome.status == "ok", outcome.output
    assert [rank["threads"] for rank in outcome.ranks] == [3, 3]
    cell = figures.cell(0, outcome)
    assert [rank["gradient_nbytes"] for rank in outcome.ranks] == [4 * 25_557_032] * 2
    assert len(cell.rank_rates) == 2 * 2
    assert cell.step_ms is not None
    assert cell.step_ms == pytest.approx(2 / cell.samples_per_s * 1e3)  # type: ignore[operator]
    settings = parse(["--model", "resnet50"]).settings
    assert (settings.warmup, settings.windows, settings.steps_per_window, settings.batch_size) == (10, 10, 10, 32)


@needs_torch
def test_horovods_adapter_calls_what_horovod_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod itself does not build here: its names stand for ringreduce's, its launcher for ringrun."""
    for folder in ("horovod", "horovod/runner"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "horovod" / "torch.py").write_text("from ringreduce.torch import *\n")
    launch = (
        "import sys\nfrom ringreduce.launch.ringrun import main\nsys.exit(main(['--bind', 'none', *sys.argv[1:]]))\n"
    )
    (tmp_path / "horovod" / "runner" / "launch.py").write_text(launch)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Horovod().absent() is None
    outcome = job.run(Horovod(), parse(QUICK), "synthetic")
    assert outcome.status == "ok", outcome.output
    (tmp_path / "horovod" / "torch.py").write_text("import no_such_library\n")
    assert "importing horovod.torch failed (ModuleNotFoundError" in (Horovod().absent() or "")


# --- the parts ----------------------------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("name", ["lenet", "mlp", "resnet18"])
def test_models_are_those_of_the_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from ringreduce.bench.train import models

    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "examples"))
    import models as examples

    ours, theirs = models.make(name, 3).parameters(), examples.make(name, 3).parameters()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_help_needs_no_torch_and_the_command_says_what_is_missing() -> None:
    from processes import completed  # here: workers import this file, and do not know of tests/support

    code = "import sys; sys.modules['torch'] = None; from ringreduce.bench.train.cli import main; sys.exit(main({}))"
    for argv, status, words in (([], 2, "pip install 'ringreduce[torch]'"), (["--help"], 0, "--model")):
        done = completed([sys.executable, "-c", code.format(argv)])
        assert done.returncode == status
        assert words in done.stdout + done.stderr


def test_bad_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        InvalidArgumentError, match="--vs gloo: no such mode; there are single, single-all, independent"
    ):
        parse(["--vs", "single,gloo"])
    with pytest.raises(InvalidArgumentError, match="a batch of 3 leaves some of 4 ranks idle"):
        parse(["-np", "4", "--batch-size", "3"])
    with pytest.raises(InvalidArgumentError, match="random images"):
        parse(["--model", "resnet50", "--data", "fashion-mnist"])
    assert parse(["--vs", "none"]).modes == ("independent", "ringreduce")
    with pytest.raises(InvalidArgumentError, match="--method int4: no such method; there are fp16, int8, powersgd"):
        parse(["--method", "int4,fp16"])
    with pytest.raises(InvalidArgumentError, match="--vs fp16: no such mode"):
        parse(["--vs", "fp16"])
    assert parse(["--method", "fp16"]).modes == ("independent", "ringreduce", "fp16")
    assert parse(["--method", "fp16", "--vs", "single"]).modes == ("single", "independent", "ringreduce", "fp16")
    for hosts in ("a:1,b:1", "localhost:2"):
        with pytest.raises(InvalidArgumentError, match="--link: it makes hosts of this one, -H names others"):
            parse(["--link", "1gbit", "-H", hosts])
    with pytest.raises(InvalidArgumentError, match="--method streaming --every 3: expected at least 4"):
        parse(["--method", "streaming", "--every", "3"])
    assert main([*QUICK, "--plot", "picture.txt"]) == main([*QUICK, "--plot", "/nowhere/picture.png"]) == 2
    said = capsys.readouterr().err
    assert "--plot picture.txt: the file's name has to end in .png, .svg, .pdf" in said
    assert "--plot /nowhere/picture.png: there is no folder /nowhere" in said
    with pytest.raises(InvalidArgumentError, match="its hosts share all cores, nothing can be bound"):
        parse(["--link", "1gbit", "--bind", "core"])
    with pytest.raises(InvalidArgumentError, match="--link -np 9: expected 1 to 8"):
        parse(["--link", "1gbit", "-np", "9"])
    assert (parse(["--link", "1gbit"]).bind, parse([]).bind) == ("none", "core")
    with pytest.raises(SystemExit):
        parse(["--rounds", "0"])


def idx(array: np.ndarray) -> bytes:
    return gzip.compress(bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


def test_fashion_mnist_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RINGREDUCE_DATA", str(tmp_path))
    assert data.choose(None) == "synthetic"
    with pytest.raises(UnavailableError, match="--data synthetic does without"):
        data.choose("fashion-mnist")
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    images = np.arange(12 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(12, 28, 28)
    labels = np.arange(12, dtype=np.uint8) % 10
    for name, array in zip(data.FILES, (images, labels), strict=True):
        (folder / name).write_bytes(idx(array))
    assert data.choose(None) == "fashion-mnist"
    assert all(np.array_equal(a, b) for a, b in zip(data.load("fashion-mnist", 0), (images, labels), strict=True))
    (folder / data.FILES[1]).write_bytes(idx(labels)[:-9])
    with pytest.raises(InvalidArgumentError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        data.load("fashion-mnist", 0)
    (folder / data.FILES[1]).write_bytes(idx(images))
    with pytest.raises(InvalidArgumentError, match=r"train-labels-idx1-ubyte\.gz is not an IDX file"):
        data.load("fashion-mnist", 0)


def test_synthetic_images_are_the_same_for_the_same_seed() -> None:
    (images, labels), again, other = data.synthetic(1), data.synthetic(1), data.synthetic(2)
    assert np.array_equal(images, again[0])
    assert np.array_equal(labels, again[1])
    assert not np.array_equal(images, other[0])
    assert (images.shape, sorted(set(labels.tolist()))) == ((len(labels), 28, 28), list(range(10)))


def test_shares_cover_the_batch() -> None:
    for count, parts in ((33, 2), (256, 3), (5, 5), (2, 4)):
        seen = [row for part in range(parts) for row in range(count)[batches.share(count, part, parts)]]
        assert seen == list(range(count))


def test_a_curve_is_folded_and_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(curves, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(curves, "MOST_POINTS", 3)
    curve = curves.Curve()
    for loss in (7.0, 5.0, 3.0, 1.0, 0.5):
        curve.add(loss)
    assert curve.steps == 5
    assert curve.points() == [(2.0, 6.0), (4.0, 2.0), (5.0, 0.5)]
    assert curves.together([[[2.0, 6.0], [4.0, 2.0]], [[1.0, 1.0], [5.0, 0.5]]]) == [(2.0, 7.0), (5.0, 2.5)]
    assert curves.smoothed([[1.0, 8.0], [2.0, 4.0], [3.0, 2.0]], width=2) == [(1.0, 8.0), (2.0, 6.0), (3.0, 3.0)]
    rising = [[float(at), float(at)] for at in range(1, 30)]
    assert curves.loss_at(rising, 0.5) is None
    assert curves.loss_at(rising, 1.5) == 1.0
    assert curves.loss_at(rising, 28.0) == 24.0, "the mean of the last nine"


def outcome(rate: float, processes: int = 2) -> Outcome:
    """A job of two windows of 10 steps on 4 samples, at this many samples/s in all."""
    seconds = 40 / rate * processes
    windows = [{"steps": 10, "samples": 40 // processes * processes, "seconds": seconds}] * 2
    rank = {"windows": windows, "losses": [1.5, 1.0], "peak_memory_KiB": 2048, "threads": 2}
    rank |= {"curve": [[1.0, 2.0]], "step_sent": None}
    return Outcome("ok", 9.0, [rank] * processes)


def test_figures_are_medians_of_ratios_within_a_round() -> None:
    rates = {"single": [100, 200, 400], "independent": [200, 400, 500], "ringreduce": [100, 300, 500]}
    cells = {
        mode: [figures.cell(n, outcome(rate, 1 if mode == "single" else 2)) for n, rate in enumerate(each)]
        for mode, each in rates.items()
    }
    cells["ddp-gloo"] = [cells["ringreduce"][0], Cell(1, "timeout", 300.0), Cell(2, "failed", 1.0, output="why")]
    cells["horovod"] = [Cell(0, "failed", 1.0)]
    processes = {mode: 1 if mode == "single" else 2 for mode in cells}
    single, bound, ours, peer, none = figures.rows(cells, processes)
    assert ours.samples_per_s == pytest.approx(300)
    assert (ours.to_single, ours.efficiency) == (pytest.approx(1.25), pytest.approx(1.25 / 4))
    assert (ours.processes, ours.threads, none.processes, none.threads) == (2, 2, 2, None)
    assert ours.fraction_of_bound == pytest.approx(0.75)
    assert ours.peak_memory_MiB == 4
    assert bound.fraction_of_bound == 1
    assert bound.step_ms is not None
    assert bound.step_ms.exposed == 0
    assert ours.step_ms is not None
    assert ours.step_ms.exposed == pytest.approx(1e3 * (8 / 300 - 8 / 400))
    assert single.fraction_of_bound is None
    assert (peer.status, peer.samples_per_s) == ("timeout", pytest.approx(100))
    assert peer.fraction_of_bound == pytest.approx(0.5)


def test_losses_are_judged_by_another_mode_where_there_is_one() -> None:
    def trained(*values: float) -> list[Cell]:
        return [Cell(0, "ok", 1.0, losses=list(values))]

    right = trained(2.0, 1.0)
    judge, verdicts = losses.judge({"independent": trained(2.0, 1.5), "ringreduce": right, "ddp-gloo": right}, 1e-3)
    assert judge == "ddp-gloo"
    assert {mode: verdict.same for mode, verdict in verdicts.items()} == dict.fromkeys(verdicts, True)
    for bad in (trained(2.0, 1.01), trained(2.1, 1.0), trained(2.0, math.nan), trained(2.0)):
        assert not losses.judge({"single": right, "ringreduce": bad}, 1e-3)[1]["ringreduce"].same
    assert losses.judge({"ringreduce": [Cell(0, "failed", 1.0)]}, 1e-3) == (None, {})


# --- modes that misbehave -------------------------------------------------------------------------------------------


class Here(Mode):
    """Found in this file by workers."""

    name = "ringreduce"

    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}


class Unreduced(Connected):
    def wrap(self, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        return model, optimizer


class Forgetful(Here):
    """ringreduce that forgets to reduce."""

    def join(self, spec: Spec) -> Team:
        import ringreduce

        world = ringreduce.init()
        return Unreduced(world.rank, world.size)


class Diverging(LocalSgd):
    """Local SGD whose averages are no numbers."""

    def environ(self) -> dict[str, str]:
        return Here().environ()

    def optimizer(self, hvd: Any, optimizer: Any, every: int) -> Any:
        def broken(parameters: Any) -> Any:
            import torch

            return torch.optim.SGD(parameters, lr=math.inf)

        return hvd.LocalSGD(optimizer, every, outer=broken)


class Hanging(Here):
    """Never gets anywhere, and does not listen."""

    def join(self, spec: Spec) -> Team:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        threading.Event().wait()
        raise AssertionError("it waits for ever")


class Failing(Here):
    def join(self, spec: Spec) -> Team:
        raise RuntimeError("no such luck")


class Silent(Here):
    def join(self, spec: Spec) -> Team:
        print("off I go", flush=True)
        os._exit(0)


class Missing(Here):
    def command(self, options: Options, worker: list[str]) -> list[str]:
        return ["no-such-launcher", *worker]
