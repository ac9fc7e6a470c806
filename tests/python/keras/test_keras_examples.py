"""examples/keras_fashion_mnist.py on two ranks, on each of Keras's backends, beside one rank."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, RINGRUN, example, run, write_data
from ranks import run_ranks
from test_keras_ranks import BACKENDS, ENVIRONMENT

pytest.importorskip("keras")


def train(ranks: int, backend: str, folder: Path, *options: str, by_ringrun: bool = False) -> Any:
    """What the example says and writes, on forked ranks or, by_ringrun, as a user starts them."""
    output = folder / "result.json"
    env = ENVIRONMENT | {"KERAS_BACKEND": backend, "RINGREDUCE_DATA": str(folder / "data")}
    words = ["--json", str(output), *options]
    if by_ringrun:
        script = EXAMPLES / "keras_fashion_mnist.py"
        text = run(RINGRUN, "-np", str(ranks), sys.executable, script, *words, env=env)
    else:
        text = run_ranks(example, ranks, args=("keras_fashion_mnist.py", *words), env=env)[0]
    return json.loads(output.read_text()) | {"text": text}


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_ranks_train_as_one(backend: str, tmp_path: Path) -> None:
    write_data(tmp_path / "data")
    options = ["--epochs", "2", "--batch-size", "32", "--steps", "3"]
    if backend == "torch":
        options += ["--warmup-epochs", "0"]  # else the learning rate of one rank differs
    save = ("--save", str(tmp_path / "best.keras"))
    two = train(2, backend, tmp_path, *options, *save, by_ringrun=backend == "torch")
    assert (two["backend"], two["ranks"]) == (backend, 2)
    assert two["history"]["loss"][1] < two["history"]["loss"][0]
    assert (tmp_path / "best.keras").stat().st_size > 100_000
    if backend != "torch":
        assert "Epoch 1: finished gradual learning rate warmup to 0.1." in two["text"]
    else:
        one = train(1, backend, tmp_path, *options)
        for name in ("loss", "accuracy"):  # two ranks leave out one of the 41 images that both look at otherwise
            assert one["history"][name] == pytest.approx(two["history"][name], rel=1e-4)
        assert one["weights"] == pytest.approx(two["weights"], rel=1e-4)
