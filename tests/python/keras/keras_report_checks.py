"""ReportCallback in fit(), with Keras's own loggers, whose files are read back. Run within a job of two ranks."""

from __future__ import annotations

import csv
import pickle
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from page_programs import program

SECTION = "In a logger"
FIGURES = ["sampled_s", "waited_share", "late_share", "latest_rank", "latest_share"]


def model_of(keras: Any, hvd: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), loss="mse")
    return model


def the_pages_program_runs(keras: Any, hvd: Any, model: Any) -> None:
    """The epochs' figures are in the history of rank 0, in its CSV file, and in TensorBoard's where there is one."""
    x = np.ones((8, 2))
    ours = {f"ringreduce/{name}" for name in FIGURES} if hvd.rank() == 0 else set()
    with tempfile.TemporaryDirectory() as folder:
        more = [keras.callbacks.TensorBoard(f"{folder}/epochs")] if has_tensorboard(keras) else []

        def fit(*args: Any, callbacks: list[Any]) -> None:
            model.fit(*args, epochs=2, batch_size=4, verbose=0, callbacks=[*callbacks, *more])

        text = program("slow.md", SECTION, "model.fit").replace("log.csv", f"{folder}/log.csv")
        names = {"hvd": hvd, "keras": keras, "model": SimpleNamespace(fit=fit), "x": x, "y": x[:, :1]}
        exec(text, names)
        rows = list(csv.DictReader(Path(folder, "log.csv").read_text().splitlines()))
        if more:
            found = event_files(Path(folder, "epochs"))
            assert [step for step, _ in found["epoch_loss"]] == [0, 1]
            assert {tag for tag in found if "ringreduce" in tag} == {f"epoch_{name}" for name in ours}
            assert all([step for step, _ in found[f"epoch_{name}"]] == [0, 1] for name in ours)
    history = model.history.history
    assert {name for name in history if "/" in name} == ours == {name for name in rows[0] if name.startswith("ring")}
    assert len(rows) == len(history["loss"]) == 2
    for name in ours:
        assert [float(row[name]) for row in rows] == history[name]


def batches_go_to_a_target(hvd: Any, model: Any) -> None:
    """Steps go on from one fit() to the next. Another callback, and report(), are not disturbed."""
    rows: list[Any] = []
    others: list[Any] = []
    told = hvd.callbacks.ReportCallback(0, "a.", None, target=lambda figures, step: rows.append((step, figures)))
    other = hvd.callbacks.ReportCallback(0, rank=1, target=lambda figures, step: others.append(figures))
    x = np.ones((12, 2))
    hvd.report()
    fits = 0
    while not all(hvd.allgather_object(len(rows) >= 2)):
        fits += 1
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[told, other])
    steps = [step for step, _ in rows]
    assert steps == sorted(set(steps))
    assert 0 < steps[0] < steps[-1] <= fits * 6
    assert {f"a.{name}" for name in [*FIGURES, "operations"]} < set(rows[0][1])
    assert all(figures["a.sampled_s"] > 0 for _, figures in rows)
    assert sum(figures["a.sampled_s"] for _, figures in rows) <= hvd.report()["sampled_s"] + 1e-9
    assert bool(others) == (hvd.rank() == 1)


def a_step_is_written_once(hvd: Any) -> None:
    """Also where waits are sampled again between the last batch, the end of training and the next fit()."""
    steps: list[int] = []
    told = hvd.callbacks.ReportCallback(0, rank=None, target=lambda figures, step: steps.append(step))
    told.on_train_begin()
    told.on_epoch_begin(0)
    batch = 0
    while not steps:
        told.on_train_batch_end(batch)
        batch += 1
    until_waits_are_sampled(hvd)
    told.on_train_end()
    until_waits_are_sampled(hvd)
    told.on_train_begin()
    assert steps == [batch]
    told.on_epoch_begin(0)
    while len(steps) < 2:
        told.on_train_batch_end(0)
    assert steps == [batch, batch + 1]


def until_waits_are_sampled(hvd: Any) -> None:
    hvd.report()
    while not hvd.report()["sampled_s"]:
        pass


def the_order_of_callbacks(hvd: Any) -> None:
    """The mean over the ranks is taken of metrics only, also after what only one of them has."""
    report = hvd.callbacks.ReportCallback()
    report.on_train_begin()
    logs = {"loss": 1.0 + hvd.rank()}
    report.on_epoch_end(0, logs)
    before = dict(logs)
    assert (len(logs) == 1 + len(FIGURES)) == (hvd.rank() == 0)
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == before | {"loss": 1.5}
    assert {type(value) for value in pickle.loads(pickle.dumps(logs)).values()} == {float}
    for wrong in ({"every_s": -1}, {"rank": -1}, {"target": 3}):
        with pytest.raises(hvd.InvalidArgumentError):
            hvd.callbacks.ReportCallback(**wrong)
    too_high = hvd.callbacks.ReportCallback(rank=2)
    with pytest.raises(hvd.InvalidArgumentError, match="ranks 0 to 1"):
        too_high.on_train_begin()


def has_tensorboard(keras: Any) -> bool:
    """Whether Keras's callback is to be tried: it imports TensorFlow, which takes 4 s on other backends."""
    return keras.backend.backend() == "tensorflow" and find_spec("tensorboard") is not None


def event_files(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Scalars of TensorFlow's event files, by tag."""
    import tensorflow as tf
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted(folder.rglob("events.*")):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.HasField("tensor") and value.tensor.dtype == tf.float32.as_datatype_enum:
                    found.setdefault(value.tag, []).append((event.step, float(tf.make_ndarray(value.tensor))))
    return found


def a_summary_writer_of_tensorflow(hvd: Any) -> None:
    """The page's program."""
    import tensorflow as tf

    def batches() -> Any:
        """As many on both ranks, until the reports are of half a second."""
        hvd.report()
        sampled_s = 0.0
        while min(hvd.allgather_object(sampled_s)) < 0.5:
            yield None
            sampled_s += hvd.report()["sampled_s"]

    with tempfile.TemporaryDirectory() as folder:
        text = program("slow.md", SECTION, "create_file_writer").replace("every_s=10", "every_s=0.1")
        names = {"hvd": hvd, "tf": tf, "batches": batches(), "train": lambda batch: None}
        exec(text.replace('"runs"', f'"{folder}"'), names)
        if hvd.rank() == 0:
            names["writer"].close()
            points = event_files(Path(folder))
            steps = [step for step, _ in points["ringreduce/operations"]]
            assert steps == sorted(set(steps))
            assert len(steps) >= 2
            assert all(0 <= value <= 1 for _, value in points["ringreduce/late_share"])


def with_either_keras(keras: Any, hvd: Any) -> None:
    """keras: the package keras, or tf.keras that is Keras 2."""
    model = model_of(keras, hvd)
    the_pages_program_runs(keras, hvd, model)
    batches_go_to_a_target(hvd, model)
    a_step_is_written_once(hvd)
    the_order_of_callbacks(hvd)


def reports(hvd: Any) -> None:
    """With Keras 3."""
    import keras

    with_either_keras(keras, hvd)
    if has_tensorboard(keras):
        a_summary_writer_of_tensorflow(hvd)


CHECKS = [reports]
