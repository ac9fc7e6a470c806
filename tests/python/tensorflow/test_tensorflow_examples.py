"""examples/tensorflow_fashion_mnist.py end to end, and the programs on the pages about TensorFlow."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorflow")

from example_runs import EXAMPLES, RINGRUN, TEST, example, fashion_mnist, run, write_data
from ranks import run_ranks
from tensorflow_checks import ENV

PAGES = Path(__file__).resolve().parents[3] / "docs" / "user"
PAGE_OF_TF = (PAGES / "tensorflow.md").read_text()


def test_training_is_the_same_on_one_rank_and_on_two(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    options = ("--model", "lenet", "--epochs", "2", "--batch-size", "33", "--dtype", "float64", "--json", str(output))
    data = write_data(tmp_path / "data")
    run_ranks(example, 1, args=("tensorflow_fashion_mnist.py", *options), env=ENV | {"RINGREDUCE_DATA": str(data)})
    alone = json.loads(output.read_text())
    script = EXAMPLES / "tensorflow_fashion_mnist.py"
    run(RINGRUN, "-np", "2", sys.executable, script, *options, data=data, env=ENV)
    two = json.loads(output.read_text())
    assert [alone["ranks"], two["ranks"]] == [1, 2]
    for row, other in zip(alone["epoch"], two["epoch"], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-9)
        assert row["test_accuracy"] == pytest.approx(other["test_accuracy"], abs=1.01 / TEST)
    assert two["epoch"][-1]["loss"] < two["epoch"][0]["loss"]
    assert two["samples_per_s"] > 0


def test_real_data(tmp_path: Path) -> None:
    """A few steps on the 60000 images; nothing is fetched for it."""
    folders = [Path(os.environ.get("RINGREDUCE_DATA", "nowhere")), Path.home() / ".cache/ringreduce/fashion-mnist"]
    data = next((folder for folder in folders if fashion_mnist._complete(folder)), None)
    if data is None:
        pytest.skip("Fashion-MNIST is not here: `make demo` fetches it")
    output = tmp_path / "result.json"
    options = ("--epochs", "1", "--steps", "80", "--batch-size", "128", "--json", output)
    run(RINGRUN, "-np", "2", sys.executable, EXAMPLES / "tensorflow_fashion_mnist.py", *options, data=data, env=ENV)
    result = json.loads(output.read_text())
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


def test_programs_of_the_pages() -> None:
    sources = programs(PAGE_OF_TF)
    assert len(sources) >= 3
    migration = programs(
        (PAGES / "migrate-from-horovod.md").read_text().split("\n## TensorFlow\n")[1].split("\n## ")[0]
    )
    assert migration
    sources += migration
    scripts = [*sources, (EXAMPLES / "tensorflow_fashion_mnist.py").read_text()]
    assert not [one for one in scripts if "model.variables" in one]  # Keras 3 has the seeds of dropout among them
    assert run_ranks(execute, 2, args=(sources,), env=ENV) == [len(sources)] * 2


def test_the_row_about_datasets_gives_all_ranks_as_many_batches() -> None:
    import tensorflow as tf

    (row,) = re.findall(r"^\| `dataset\.batch\(global_batch\)`; .*\| `(dataset.*)` \|$", PAGE_OF_TF, re.MULTILINE)
    for count, size, global_batch in ((10001, 2, 50), (9999, 2, 50), (1200, 3, 48), (47, 2, 48)):
        dealt = []
        for rank in range(size):
            hvd = SimpleNamespace(size=lambda size=size: size, rank=lambda rank=rank: rank)
            names = {"dataset": tf.data.Dataset.range(count), "global_batch": global_batch, "hvd": hvd}
            dealt.append([batch.tolist() for batch in eval(row, names).as_numpy_iterator()])
        assert {len(batches) for batches in dealt} == {count // global_batch}
        assert {len(batch) for batches in dealt for batch in batches} <= {global_batch // size}
        for number, together in enumerate(zip(*dealt, strict=True)):
            examples = sorted(example for batch in together for example in batch)
            assert examples == list(range(number * global_batch, (number + 1) * global_batch))
