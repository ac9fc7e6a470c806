"""The examples end to end, on a small data set of the real format; and how the real data set is found."""

import gzip
import json
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from example_runs import EXAMPLES, RINGRUN, TEST, TRAIN, example, fashion_mnist, run, write_data
from processes import completed
from ranks import clean_environment, run_ranks


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "small")


def lines_of(script: str, *options: str, ranks: int = 2, data: Path | None = None) -> list[str]:
    """What the ranks print."""
    texts = run_ranks(example, ranks, args=(script, *options), env={"RINGREDUCE_DATA": data and str(data)})
    return "".join(texts).splitlines()


def test_hello() -> None:
    lines = run(RINGRUN, "-np", "3", sys.executable, EXAMPLES / "hello.py").splitlines()
    assert sorted(lines) == [f"rank {rank} of 3: [6. 6. 6. 6.]" for rank in range(3)]


def test_training_is_the_same_on_one_rank_and_on_three(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ("--model", "lenet", "--epochs", "3", "--batch-size", "32", "--dtype", "float64")
    output = tmp_path / "result.json"
    results = []
    for ranks, more in ((1, ()), (3, ("--bound", "1"))):
        lines_of("torch_fashion_mnist.py", *options, *more, "--json", str(output), ranks=ranks, data=data)
        results.append(json.loads(output.read_text()))
    alone, three = results
    assert [alone["ranks"], three["ranks"]] == [1, 3]
    for row, other in zip(alone["epoch"], three["epoch"], strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-6)
        assert row["test_accuracy"] == pytest.approx(other["test_accuracy"], abs=1.01 / TEST)
    assert three["epoch"][-1]["loss"] < three["epoch"][0]["loss"]
    assert three["bound"]["fraction"] > 0
    assert three["bound"]["samples_per_s"] > 0
    assert three["samples_per_s"] > 0


@pytest.mark.parametrize(("model", "parameters"), [("mlp", 20_037_642), ("resnet18", 11_175_818)])
def test_the_other_models_run(model: str, parameters: int, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    options = ("--model", model, "--epochs", "1", "--steps", "2", "--batch-size", "4", "--json", str(output))
    lines_of("torch_fashion_mnist.py", *options, data=data)
    result = json.loads(output.read_text())
    assert result["gradient_nbytes"] == 4 * parameters
    assert 0 <= result["test_accuracy"] <= 1


@pytest.mark.parametrize("options", [(), ("--fp16-allreduce", "--gradient-predivide-factor", "2.0")])
def test_a_script_in_horovods_shape(options: tuple[str, ...], data: Path) -> None:
    pytest.importorskip("torch")
    size = ("--epochs", "2", "--batches", "3", "--batch-size", "8", "--log-interval", "1", *options)
    lines = lines_of("pytorch_mnist.py", *size, data=data)
    assert len(lines) == 2 * (3 + 1)
    assert [line.split("]")[0] for line in lines[:3]] == [f"epoch 1 [{8 * n}/{TRAIN // 2}" for n in range(3)]
    match = re.fullmatch(r"epoch 2: test loss (\d+\.\d+), accuracy (\d+\.\d+) %", lines[-1])
    assert match
    assert 0 < float(match[1]) < 4
    assert float(match[2]) <= 100


def test_a_script_in_horovods_shape_counts_each_test_image_once(data: Path) -> None:
    pytest.importorskip("torch")
    size = ("--epochs", "1", "--batches", "1", "--test-batch-size", "4", "--lr", "0")  # so that the model is the same
    lines = [lines_of("pytorch_mnist.py", *size, ranks=ranks, data=data)[-1] for ranks in (1, 3)]
    alone, three = ([float(number) for number in re.findall(r"\d+\.\d+", line)] for line in lines)
    assert TEST % 3 != 0
    assert three == pytest.approx(alone, abs=1.01e-4), lines  # the last digit of the loss


@pytest.mark.parametrize(
    ("ranks", "options", "text"),
    [
        (3, (), "--use-adasum takes a power of two of ranks: start 2 or 4 ranks instead of 3"),
        (2, ("--gradient-predivide-factor", "2"), "--gradient-predivide-factor divides an average: leave it out with"),
    ],
)
def test_adasum_is_refused_before_data_is_loaded(
    ranks: int, options: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    environ = clean_environment() | {"RINGREDUCE_DATA": str(tmp_path / "missing")}  # loading would fail otherwise
    script = [EXAMPLES / "pytorch_mnist.py", "--use-adasum", *options]
    done = completed([RINGRUN, "-np", str(ranks), sys.executable, *script], env=environ)
    assert done.returncode in (1, 2), done.stderr
    assert text in done.stderr
    assert "missing" not in done.stderr


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("method", ["synchronous", "post-local", "diloco", "streaming"])
def test_local_sgd(method: str, ranks: int, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    options = ("--method", method, "--every", "4", "--epochs", "2", "--steps", "5", "--batch-size", "8")
    env = {"RINGREDUCE_DATA": str(data)}
    run_ranks(example, ranks, args=("torch_local_sgd.py", *options, "--json", str(output)), env=env)
    result = json.loads(output.read_text())
    assert (result["ranks"], result["steps"], result["method"]) == (ranks, 10, method)
    assert 0 <= result["accuracy"] <= 1
    # Ten steps of warmup, or a broadcast, two averagings and one at the end; the fragments take turns.
    averagings = {"synchronous": (10, 10), "post-local": (10, 10), "diloco": (4, 4), "streaming": (4, 5)}[method]
    least, most = (number * 129_068 * 4 for number in averagings)
    assert least <= result["nbytes"] < most + 10_000


@pytest.mark.parametrize("method", ["fp16", "int8", "powersgd"])
def test_gradients_in_fewer_bytes(method: str, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    options = ("--method", method, "--epochs", "1", "--steps", "20", "--batch-size", "4", "--json", str(output))
    run_ranks(example, 2, args=("torch_local_sgd.py", *options), env={"RINGREDUCE_DATA": str(data)})
    result = json.loads(output.read_text())
    assert result["steps"] == 20
    assert result["wire_nbytes"] == 0  # all ranks are on one host
    ((seconds, loss),) = result["curve"]
    assert seconds > 0
    assert 0 < loss < 10


def test_local_sgd_of_no_epochs(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    output = tmp_path / "result.json"
    lines_of("torch_local_sgd.py", "--epochs", "0", "--json", str(output), data=data)
    assert json.loads(output.read_text())["steps"] == 0


@pytest.mark.parametrize("batch_size", ["1", "7"])
def test_local_sgd_refuses_a_batch_that_ranks_cannot_share(batch_size: str, data: Path) -> None:
    pytest.importorskip("torch")
    script = [EXAMPLES / "torch_local_sgd.py", "--batch-size", batch_size, "--epochs", "1", "--steps", "1"]
    environ = clean_environment() | {"RINGREDUCE_DATA": str(data)}
    done = completed([RINGRUN, "-np", "2", sys.executable, *script], env=environ)
    assert done.returncode == 1, done.stderr
    assert f"--batch-size {batch_size} cannot be shared out evenly to 2 ranks" in done.stdout + done.stderr


def test_synthetic_benchmark() -> None:
    pytest.importorskip("torch")
    size = ("--model", "lenet", "--batch-size", "4", "--num-warmup-batches", "1", "--num-batches-per-iter", "2")
    lines = lines_of("pytorch_synthetic_benchmark.py", *size, "--num-iters", "3")
    assert sum(line.startswith("Iter #") for line in lines) == 3
    rate = re.fullmatch(r"Img/sec per rank: (\d+\.\d) \+-(\d+\.\d)", lines[-2])
    total = re.fullmatch(r"Total img/sec on 2 rank\(s\): (\d+\.\d) \+-(\d+\.\d)", lines[-1])
    assert rate
    assert total
    for one, both in zip(rate.groups(), total.groups(), strict=True):
        assert float(both) == pytest.approx(2 * float(one), abs=0.2)


def test_demo(data: Path) -> None:
    pytest.importorskip("torch")
    text = run(sys.executable, EXAMPLES / "demo.py", "--epochs", "1", "--steps", "2", "--bound", "1", data=data)
    last = text.splitlines()[-1]
    assert last.startswith("2 ranks: test accuracy 0.")
    assert last.endswith("x one process with all threads")


# --- finding the data set -------------------------------------------------------------------------------------------


@pytest.fixture(name="cache")
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("RINGREDUCE_DATA", raising=False)
    return tmp_path / "ringreduce" / "fashion-mnist"


def test_the_named_folder_comes_before_the_cache(cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(cache)
    assert fashion_mnist.locate() == cache
    monkeypatch.setenv("RINGREDUCE_DATA", str(data))
    assert fashion_mnist.locate() == data
    loaded = fashion_mnist.load()
    assert [len(array) for array in loaded] == [TRAIN, TRAIN, TEST, TEST]
    assert loaded.train_images.shape == (TRAIN, 28, 28)
    assert loaded.test_labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_one_error_lists_the_four_ways(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(fashion_mnist, "SITE", "http://127.0.0.1:9/")
    with pytest.raises(FileNotFoundError, match=r"(?s)1\. set RINGREDUCE_DATA.*2\. put these.*3\. make.*apt.*4\. make"):
        fashion_mnist.load()
    assert os.listdir(cache.parent) == ["fashion-mnist.lock"]


def test_ranks_fetch_once_and_whole(cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def from_debian(work: Path, files: Path) -> None:
        fetched.append(work)
        for name in fashion_mnist.FILES:
            assert not cache.exists()
            (files / name).write_bytes((data / name).read_bytes())

    monkeypatch.setattr(fashion_mnist, "_from_debian", from_debian)
    threads = [threading.Thread(target=fashion_mnist.locate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 1
    assert len(fashion_mnist.load().train_labels) == TRAIN


@pytest.mark.parametrize("damage", ["cut", "not gzip", "too long", "another type"])
def test_damaged_files_are_named(damage: str, cache: Path) -> None:
    write_data(cache)
    path = cache / "train-images-idx3-ubyte.gz"
    content = path.read_bytes()
    plain = gzip.decompress(content)
    path.write_bytes(
        {
            "cut": content[:1000],
            "not gzip": b"<html>" * 100,
            "too long": gzip.compress(plain + b"x"),
            "another type": gzip.compress(b"\0\0\x0b\x03" + plain[4:]),
        }[damage]
    )
    with pytest.raises((ValueError, OSError), match="train-images-idx3-ubyte" if damage != "not gzip" else "gzip"):
        fashion_mnist.load()


def test_the_sites_files_must_have_the_published_checksums(
    cache: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(fashion_mnist, "SITE", f"{data.as_uri()}/")
    with pytest.raises(FileNotFoundError, match="checksum differs"):
        fashion_mnist.load()
