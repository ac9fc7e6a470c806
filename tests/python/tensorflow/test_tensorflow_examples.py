"""examples/tensorflow_fashion_mnist.py end to end, and the programs on the pages about TensorFlow."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow")

from example_runs import EXAMPLES, RINGRUN, TEST, fashion_mnist, run, write_data
from tensorflow_checks import ENV

PAGES = Path(__file__).resolve().parents[3] / "docs"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "small")


def train(ranks: int, folder: Path, data: Path, *options: str) -> dict[str, Any]:
    launcher = [RINGRUN, "-np", str(ranks)] if ranks else []
    output = folder / "result.json"
    script = EXAMPLES / "tensorflow_fashion_mnist.py"
    run(*launcher, sys.executable, script, "--json", output, *options, data=data)
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def test_training_is_the_same_on_one_rank_and_on_two(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    options = ("--model", "lenet", "--epochs", "2", "--batch-size", "33", "--dtype", "float64")
    alone = train(0, tmp_path, data, *options)
    two = train(2, tmp_path, data, *options)
    assert [alone["ranks"], two["ranks"]] == [1, 2]
    for row, other in zip(alone["epoch"], two["epoch"], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-9)
        assert row["test_accuracy"] == pytest.approx(other["test_accuracy"], abs=1.01 / TEST)
    assert two["epoch"][-1]["loss"] < two["epoch"][0]["loss"]
    assert two["samples_per_s"] > 0


def test_real_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps on the 60000 images; nothing is fetched for it."""
    folders = [Path(os.environ.get("RINGREDUCE_DATA", "nowhere")), Path.home() / ".cache/ringreduce/fashion-mnist"]
    data = next((folder for folder in folders if fashion_mnist._complete(folder)), None)
    if data is None:
        pytest.skip("Fashion-MNIST is not here: `make demo` fetches it")
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    result = train(2, tmp_path, data, "--epochs", "1", "--steps", "80", "--batch-size", "128")
    assert result["gradient_nbytes"] == 4 * 129_068
    assert result["test_accuracy"] > 0.6


def programs(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def execute(sources: list[str]) -> int:
    """One program after the other, each in a job of its own; how many there were."""
    import ringreduce.tensorflow as hvd

    for number, source in enumerate(sources):
        exec(compile(source, f"<program {number} of the page>", "exec"), {})
        hvd.shutdown()
    return len(sources)


def test_programs_of_the_pages(run_ranks: Callable[..., Any]) -> None:
    sources = programs((PAGES / "tensorflow.md").read_text())
    assert len(sources) >= 3
    migration = programs(
        (PAGES / "migrate-from-horovod.md").read_text().split("\n## TensorFlow\n")[1].split("\n## ")[0]
    )
    assert migration
    sources += migration
    assert run_ranks(execute, 2, args=(sources,), env=ENV) == [len(sources)] * 2
