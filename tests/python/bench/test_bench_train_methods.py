"""`ringreduce bench train`: what methods send, their curves and losses. Jobs are forks, which are there at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_train_jobs import QUICK, Diverging, Failing, Forgetful, bench, forked_ranks, needs_torch

from ringreduce.bench.train import job
from ringreduce.bench.train.modes import METHODS, MODES
from ringreduce.bench.train.options import parse

__all__ = ["forked_ranks"]
pytestmark = [needs_torch, pytest.mark.usefixtures("forked")]


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


def test_sharded_optimizers_reach_the_same_loss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document, rows = bench(tmp_path, "--vs", "single,ringreduce-shard", "--optimizer", "adam")
    assert status == 0, capsys.readouterr().err
    assert list(rows) == ["single", "independent", "ringreduce", "ringreduce-shard"]
    assert document["meta"]["optimizer"] == "adam"
    assert all(row["same_loss"] for row in rows.values())
    with_sgd = job.run(MODES["single"], parse(QUICK), "synthetic").ranks[0]["losses"][-1]
    assert with_sgd != pytest.approx(rows["single"]["loss"], rel=1e-3), "the optimizer makes a difference"


def test_windows_are_whole_periods() -> None:
    argv = ["--method", "local-sgd", "--every", "4", "--batch-size", "33", "--check-steps", "3"]
    windows = ["--warmup", "1", "--iters", "2", "--batches-per-iter", "5"]
    outcome = job.run(MODES["local-sgd"], parse([*argv, *windows]), "synthetic")
    assert outcome.status == "ok", outcome.output
    for rank in outcome.ranks:
        assert [window["steps"] for window in rank["windows"]] == [8, 8]
        assert len(rank["curve"]) == 3 + 4 + 2 * 8


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
