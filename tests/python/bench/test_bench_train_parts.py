"""The parts of `ringreduce bench train` that need no job: options, data, models, curves, and the arithmetic."""

from __future__ import annotations

import gzip
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from bench_train_jobs import QUICK, needs_torch

from ringreduce.bench.train import batches, cli, curves, data, figures, losses, results
from ringreduce.bench.train.cli import main
from ringreduce.bench.train.figures import Cell
from ringreduce.bench.train.job import Outcome
from ringreduce.bench.train.options import parse
from ringreduce.errors import Error, InvalidArgumentError, UnavailableError


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
    assert main([*QUICK, "--json", "/nowhere/train.json"]) == 2
    said = capsys.readouterr().err
    assert "--plot picture.txt: the file's name has to end in .png, .svg, .pdf" in said
    for file in ("/nowhere/picture.png", "/nowhere/train.json"):
        assert f"{file}: cannot be written: there is no folder /nowhere; make it first" in said
    with pytest.raises(InvalidArgumentError, match="its hosts share all cores, nothing can be bound"):
        parse(["--link", "1gbit", "--bind", "core"])
    with pytest.raises(InvalidArgumentError, match="--link -np 9: expected 1 to 8"):
        parse(["--link", "1gbit", "-np", "9"])
    with pytest.raises(InvalidArgumentError, match="--every: say by --method what averages: local-sgd, diloco"):
        parse(["--every", "10", "--method", "fp16"])
    assert [parse(words).every for words in (["--method", "diloco", "--every", "10"], [])] == [10, 50]
    with pytest.raises(InvalidArgumentError, match="--seconds and --batches-per-iter both say how long a window is"):
        parse(["--seconds", "1", "--batches-per-iter", "10"])
    assert parse(["--model", "resnet50"]).settings.steps_per_window == 10
    assert parse(["--model", "resnet50", "--seconds", "1"]).settings.steps_per_window is None
    assert (parse(["--link", "1gbit"]).bind, parse([]).bind) == ("none", "core")
    with pytest.raises(SystemExit):
        parse(["--rounds", "0"])


@needs_torch
def test_a_rank_of_a_job_starts_no_jobs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "run", lambda options, chosen: 0)
    assert main(QUICK) == 0
    with monkeypatch.context() as shell_of_slurm:  # srun --pty bash
        for name, value in (("PROCID", "0"), ("LOCALID", "0"), ("STEP_ID", "0"), ("JOB_ID", "7"), ("NTASKS", "1")):
            shell_of_slurm.setenv(f"SLURM_{name}", value)
        assert main(QUICK) == 0
    for name, value in (("RANK", "1"), ("SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_SIZE", "4")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    assert main(QUICK) == 2
    said = capsys.readouterr().err
    assert "ringreduce bench train starts jobs of its own: call it outside of this job of 4 ranks (openmpi)" in said


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
