"""ReportLog to TensorBoard, of a group of torch.distributed, and in Lightning: the real ones, files read back."""

from __future__ import annotations

import csv
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from page_programs import program  # noqa: E402
from processes import completed  # noqa: E402
from ranks import clean_environment  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402

SECTION = "In a logger"


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def rank_of() -> int:
    return int(os.environ["RINGREDUCE_RANK"])


def to_tensorboard(folder: str) -> dict[str, list[tuple[int, float]]]:
    """The page's program, until there is something to write. What the event files have, by name."""
    os.chdir(folder)
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # else TensorBoard imports it, which takes 4 s
    with hvd.init():
        text = program("slow.md", SECTION, "SummaryWriter").replace("(writer)", "(writer, every_s=0.1)")
        x = torch.ones(3)

        def batches() -> Any:
            """As many on all ranks, until the reports are of half a second."""
            hvd.report()
            sampled_s = 0.0
            while sampled_s < 0.5:
                yield x
                sampled_s += hvd.report()["sampled_s"]
                sampled_s = float(hvd.allreduce(torch.tensor([sampled_s]), op=hvd.Min))

        exec(text, {"hvd": hvd, "batches": batches(), "train": lambda batch: hvd.allreduce(batch, op=hvd.Sum)})
        hvd.barrier()
        if hvd.rank() != 0:
            return {}
        return scalars(Path("runs"))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_reads_what_was_written(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    needs("tensorboard")
    written, nothing = run_ranks(to_tensorboard, 2, args=(str(tmp_path),))
    assert nothing == {}
    assert {"ringreduce/late_share", "ringreduce/latest_rank", "ringreduce/operations"} < set(written)
    assert len({len(points) for points in written.values()}) == 1
    steps = [step for step, _ in written["ringreduce/operations"]]
    assert steps == sorted(steps)
    assert len(steps) >= 2
    operations = [value for _, value in written["ringreduce/operations"]]
    assert operations == sorted(operations)
    assert all(0 <= value <= 1 for _, value in written["ringreduce/waited_share"])


def of_a_group(store: str) -> None:
    rows: list[Any] = []
    dist.init_process_group("ringreduce", init_method=f"file://{store}", rank=rank_of(), world_size=2)
    with pytest.raises(hvd.NotInitializedError):
        hvd.ReportLog(print).step(0)
    log = hvd.ReportLog(lambda figures, step: rows.append(figures), 0, rank=1, group=dist.group.WORLD)
    is_over = torch.zeros(1)
    while not is_over:
        log.step(0)
        is_over = torch.tensor([float(len(rows))])
        dist.broadcast(is_over, 1)
    assert bool(rows) == (rank_of() == 1)
    for figures in rows:
        assert figures["ringreduce/operations"] > 0
        assert figures["ringreduce/latest_rank"] in (-1, 0, 1)
    if os.fork() == 0:
        try:
            log.write(0)
        except hvd.NotInitializedError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.wait()[1] == 0
    dist.destroy_process_group()


def test_a_group_of_torch_distributed(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(of_a_group, 2, args=(str(tmp_path / "store"),))


def with_lightning(folder: str, port: int) -> None:
    """The page's program, with a module that trains until something has been written."""
    places = {"LOCAL_RANK": rank_of(), "NODE_RANK": 0, "WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()}, MASTER_ADDR="127.0.0.1")
    os.chdir(folder)
    import lightning.pytorch

    class Module(lightning.pytorch.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.nn.Linear(2, 1)

        def training_step(self, x: Any, _: int) -> Any:
            return self.model(x).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def batches() -> Any:
        """As many on both ranks, until the group has been sampled for half a second."""
        is_over = torch.zeros(1)
        while not is_over:
            yield torch.ones(4, 2)
            is_over = torch.tensor([float(dist.group.WORLD.reported().context.times()[0] > 0.5)])
            dist.all_reduce(is_over, dist.ReduceOp.MIN)

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return batches()

    text = program("slow.md", SECTION, "lightning.pytorch.Trainer").replace("ReportCallback()", "ReportCallback(0.1)")
    text = text.replace("max_epochs=1,", "max_epochs=1, enable_progress_bar=False, enable_model_summary=False,")
    names: dict[str, Any] = {"module": Module(), "batches": torch.utils.data.DataLoader(Batches(), batch_size=None)}
    exec(text, names)
    assert issubclass(names["ReportCallback"], lightning.pytorch.Callback)
    assert not hvd.is_initialized()
    if rank_of() == 0:
        (file,) = Path("runs").rglob("metrics.csv")
        rows = list(csv.DictReader(file.read_text().splitlines()))
        assert len(rows) >= 2
        assert all(0 <= float(row["ringreduce/late_share"]) <= 1 for row in rows)
        assert all(float(row["ringreduce/sampled_s"]) > 0 for row in rows)
        steps = [int(row["step"]) for row in rows]
        assert steps == sorted(steps)
        assert 0 < steps[0] <= steps[-1] <= names["trainer"].global_step
    dist.destroy_process_group()


def test_lightning_writes_to_its_loggers(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    import socket

    needs("lightning")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_ranks(with_lightning, 2, args=(str(tmp_path), port))


def test_the_package_that_lightning_is_in() -> None:
    """pytorch_lightning where there is no lightning, here a stand-in: the real one takes long to import."""
    code = """if True:
        import sys, types
        sys.modules["lightning"] = None
        stand_in = types.SimpleNamespace(Callback=type("Callback", (), {}))
        sys.modules["pytorch_lightning"] = stand_in
        import ringreduce.torch.lightning as ours
        assert issubclass(ours.ReportCallback, stand_in.Callback)
        sys.modules["pytorch_lightning"] = None
        del sys.modules["ringreduce.torch.lightning"]
        import ringreduce.torch.lightning
    """
    done = completed([sys.executable, "-c", code], env=clean_environment())
    needed = "ringreduce.torch.lightning needs lightning; that is not installed: pip install lightning"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {needed}"
