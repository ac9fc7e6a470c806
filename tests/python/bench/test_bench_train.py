"""`ringreduce bench train` as a user starts it: its jobs, the JSON and the table, deadlines, absent modes."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import pytest
from bench_train_jobs import QUICK, Failing, Hanging, Missing, Silent, bench, forked_ranks, needs_torch

from ringreduce.bench.train import figures, job
from ringreduce.bench.train.frameworks.torch import Torch
from ringreduce.bench.train.modes import MODES
from ringreduce.bench.train.modes.horovod import Horovod
from ringreduce.bench.train.modes.ringreduce import Ringreduce
from ringreduce.bench.train.options import parse

__all__ = ["forked_ranks"]


@needs_torch
@pytest.mark.parametrize("jobs", ["forked", pytest.param("started", marks=pytest.mark.long)])
def test_modes_reach_the_same_loss_and_an_absent_one_is_named(
    jobs: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Forked ranks save the start of nine processes that import torch. The tests below start a mode's processes."""
    if jobs == "forked":
        request.getfixturevalue("forked")
    monkeypatch.setitem(sys.modules, "horovod", None)  # as if it were not installed
    status, document, rows = bench(tmp_path, "--vs", "single,ddp-ringreduce,ddp-gloo,horovod")
    said = capsys.readouterr()
    assert status == 0, said.err
    assert list(rows) == ["single", "independent", "ringreduce", "ddp-ringreduce", "ddp-gloo"]
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
    assert {"ranks", "model", "batch_size", "seconds", "torch", "data", "cpu", "load_average_after"} <= document[
        "meta"
    ].keys()
    lines = said.out.splitlines()
    assert next(line for line in lines if line.split()[:1] == ["horovod"]).split()[2] == "absent"
    assert any(line.startswith("# horovod: absent, not installed; its last release") for line in lines)
    reduced = ", ".join(mode for mode in rows if mode not in ("single", "independent"))
    assert f"# loss after 3 steps: {reduced} as single, within 0.001\n" in said.out
    assert "# loss before the first step: independent as single, within 0.001\n" in said.out
    table = [line for line in lines if line.startswith(("# mode", "  "))]
    assert len({len(line) for line in table}) == 1


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


@needs_torch
@pytest.mark.long  # likewise, with LeNet: test_modes_reach_the_same_loss_and_an_absent_one_is_named
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
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Horovod().absent() is None
    outcome = job.run(Horovod(), parse(QUICK), "synthetic")
    assert outcome.status == "ok", outcome.output
    (tmp_path / "horovod" / "torch.py").write_text("import no_such_library\n")
    assert "importing horovod.torch failed (ModuleNotFoundError" in (Horovod().absent() or "")
