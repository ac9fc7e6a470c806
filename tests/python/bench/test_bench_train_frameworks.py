"""`ringreduce bench train --framework tensorflow|keras|jax`: every mode reaches the losses that PyTorch computes.

Deadlines, methods and the arithmetic are tested with PyTorch, in test_bench_train*.py, for all frameworks.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringreduce.bench.train import optimizers
from ringreduce.bench.train.cli import main
from ringreduce.bench.train.frameworks import FRAMEWORKS, weights
from ringreduce.bench.train.frameworks.samples import Samples
from ringreduce.bench.train.modes import MODES, mwms
from ringreduce.bench.train.modes.independent import Connected
from ringreduce.bench.train.modes.mode import Mode, Team
from ringreduce.bench.train.options import parse
from ringreduce.bench.train.spec import Spec
from ringreduce.errors import InvalidArgumentError, TimeoutError

HERE = Path(__file__).resolve().parent
BATCH, STEPS = 33, 3  # 33: the shares of two ranks differ
QUICK = ["--data", "synthetic", "--batch-size", str(BATCH), "--check-steps", str(STEPS), "--seconds", "0.02"]
RIGHT = 2e-4  # frameworks' rounding was 3e-5 at most; models that are not reduced differed by 1e-3 or more
ALWAYS = ["independent", "ringreduce"]


def need(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def bench(folder: Path, framework: str, *argv: str) -> tuple[int, dict[str, Any], dict[str, dict[str, Any]]]:
    """(exit status, the JSON, its results by mode)."""
    file = folder / "train.json"
    status = main(["--framework", framework, *QUICK, "--rounds", "1", *argv, "--json", str(file)])
    document = json.loads(file.read_text())
    assert document.keys() == {"meta", "results", "absent"}
    return status, document, {row["mode"]: row for row in document["results"]}


def losses_by_torch(optimizer: str) -> list[float]:
    """LeNet's, before each of STEPS steps on whole batches and after the last, from the same weights and samples."""
    need("torch")
    import torch
    from torch.nn import functional as f

    options = parse(["--framework", "jax", *QUICK, "--optimizer", optimizer])
    samples = Samples(spec_of(optimizer))
    parameters = []
    for array in weights.make("lenet", 0):
        tensor = torch.from_numpy(array)
        turned = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[tensor.ndim]
        parameters.append(torch.nn.Parameter(tensor.permute(turned).contiguous()))
    k1, b1, k2, b2, w3, b3, w4, b4 = parameters
    update = optimizers.make(optimizer, parameters, options.settings.lr)
    losses = []
    for step in range(STEPS + 1):
        images, labels = samples.parts(step, 1, range(1))
        x = torch.from_numpy(images).permute(0, 3, 1, 2)
        x = f.avg_pool2d(f.relu(f.conv2d(x, k1, b1)), 2)
        x = f.avg_pool2d(f.relu(f.conv2d(x, k2, b2)), 2)
        x = f.linear(f.relu(f.linear(x.permute(0, 2, 3, 1).flatten(1), w3, b3)), w4, b4)
        loss = f.cross_entropy(x, torch.from_numpy(labels).long())
        losses.append(loss.item())
        update.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        update.step()
    return losses


def spec_of(optimizer: str) -> Spec:
    return Spec(
        mode="",
        framework="jax",
        model="lenet",
        ranks=2,
        batch_size=BATCH,
        data="synthetic",
        seed=0,
        lr=0.05,
        optimizer=optimizer,
        seconds=1.0,
        check_steps=STEPS,
        warmup=1,
        windows=1,
        steps_per_window=None,
        every=1,
        bind="core",
        threads=None,
        folder="",
        mark="",
        timeout_s=1.0,
    )


@pytest.mark.parametrize(
    ("framework", "optimizer", "vs", "absent"),
    [
        pytest.param("tensorflow", "momentum", ["mwms"], ["ddp-gloo", "horovod"], marks=pytest.mark.long),
        ("keras", "sgd", ["mwms-ring"], ["ringreduce-shard", "horovod"]),
        ("jax", "adam", ["in-step"], ["ddp-ringreduce", "mwms", "mwms-ring", "horovod"]),
    ],
)
def test_all_modes_reach_the_losses_of_pytorch(
    framework: str,
    optimizer: str,
    vs: list[str],
    absent: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    need(framework)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    status, document, rows = bench(tmp_path, framework, "--vs", ",".join([*vs, *absent]), "--optimizer", optimizer)
    said = capsys.readouterr()
    assert status == 0, said.err
    assert set(rows) == {*ALWAYS, *vs}
    failed = [(mode, cell["output"]) for mode, row in rows.items() for cell in row["rounds"] if cell["status"] != "ok"]
    assert not failed
    assert {row["same_loss"] for row in rows.values()} == {True}
    right = losses_by_torch(optimizer)
    for mode, row in rows.items():
        (cell,) = row["rounds"]
        assert row["samples_per_s"] == cell["samples_per_s"] > 0
        if MODES[mode].is_reduced:
            assert cell["losses"] == pytest.approx(right, rel=RIGHT), mode
        else:
            assert cell["losses"][0] == pytest.approx(right[0], rel=RIGHT), mode
            assert cell["losses"] != pytest.approx(right, rel=RIGHT)  # else the comparison would show nothing
        assert row["processes"] == (1 if mode.startswith("single") else 2)

    meta = document["meta"]
    assert meta["framework"] == framework
    assert meta["versions"].keys() == set(FRAMEWORKS[framework].packages)
    assert f"{framework} {meta[framework]}" in said.out.splitlines()[0]
    assert {entry["mode"]: entry["why"] for entry in document["absent"]}.keys() == set(absent)
    reasons = {"ddp-gloo": "for torch only", "mwms": "for tensorflow and keras only", "horovod": "orovod"}
    for entry in document["absent"]:
        assert reasons.get(entry["mode"], "only") in entry["why"]
        assert f"# {entry['mode']}: absent, {entry['why']}" in said.out.splitlines()


def test_a_mode_that_does_not_reduce_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("jax")
    monkeypatch.setitem(MODES, "ringreduce", Forgetful())
    status, _, rows = bench(tmp_path, "jax", "--vs", "single")
    assert status == 1
    assert {mode: row["same_loss"] for mode, row in rows.items()} == {
        "single": True,
        "independent": True,
        "ringreduce": False,
    }
    assert rows["single"]["rounds"][0]["losses"] == pytest.approx(losses_by_torch("sgd"), rel=1e-3)
    assert "# ringreduce: WRONG, its loss differs from that of single by" in capsys.readouterr().out


class Forgetful(Mode):
    """ringreduce that forgets to reduce. Workers find it in this file."""

    name = "ringreduce"

    def environ(self) -> dict[str, str]:
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))}

    def join(self, spec: Spec) -> Team:
        import ringreduce

        world = ringreduce.init()
        return Connected(world.rank, world.size)


# --- the parts ----------------------------------------------------------------------------------------------------


def test_what_a_framework_has_not_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for framework in ("tensorflow", "keras", "jax"):
        with pytest.raises(InvalidArgumentError, match=f"{framework} --model resnet18: there are lenet, mlp"):
            parse(["--framework", framework, "--model", "resnet18"])
        assert parse(["--framework", framework, "--model", "mlp"]).model == "mlp"
    assert parse(["--framework", "jax"]).modes == ("single", "single-all", "independent", "ringreduce")
    assert "mwms-ring" in parse(["--framework", "keras"]).modes
    assert "mwms" not in parse([]).modes

    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert MODES["mwms"].absent("keras") == "a strategy is TensorFlow's, and KERAS_BACKEND is jax"
    assert FRAMEWORKS["keras"].packages == ("keras", "jax")
    monkeypatch.setitem(sys.modules, "jax", None)  # as if it were not installed
    assert main(["--framework", "keras"]) == 2
    assert "jax cannot be imported): pip install keras 'ringreduce[jax]'" in capsys.readouterr().err


def test_the_mlp_has_80_megabytes_of_gradients() -> None:
    assert sum(array.nbytes for array in weights.make("mlp", 0)) == 4 * (785 * 4096 + 4097 * 4096 + 4097 * 10)


def test_parts_of_a_batch_are_the_whole_one() -> None:
    samples = Samples(spec_of("sgd"))
    for step in (0, 1, 248, 249):  # 248 batches an epoch
        whole, labels = samples.parts(step, 1, range(1))
        assert (whole.shape, whole.dtype, labels.dtype) == ((BATCH, 28, 28, 1), np.float32, np.int32)
        assert 0 <= whole.min() < 0.1 < 0.9 < whole.max() <= 1
        for mine in ([range(2)], [range(1), range(1, 2)]):
            parts = [samples.parts(step, 2, each) for each in mine]
            assert np.array_equal(np.concatenate([images for images, _ in parts]), whole)
            assert np.array_equal(np.concatenate([part for _, part in parts]), labels)
    first, again, second = (samples.parts(step, 1, range(1))[1] for step in (0, 0, 248))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_no_worker_of_tensorflow_leaves_before_all_have_their_results(tmp_path: Path) -> None:
    with socket.socket() as port:
        spec = replace(spec_of("sgd"), folder=str(tmp_path), timeout_s=0.05)
        worker = mwms.Workers(1, 2, None, port, spec)
        with pytest.raises(TimeoutError, match="no done-0 after"):
            worker.leave()
        mwms.publish(tmp_path / "done-0", "")
        worker.leave()
