"""Lightning and Accelerate over the backend ringreduce, each as its own documentation would have it."""

import importlib.util
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from launched_scripts import RINGRUN, said

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import ringreduce.torch  # noqa: E402, F401  # registers the backend

SIZE, SHARE, STEPS = 2, 4, 5
RATE = 0.1


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()


def data() -> Any:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SIZE * SHARE * STEPS, 6, dtype=torch.float64, generator=generator)


def loader(batch_size: int) -> Any:
    return torch.utils.data.DataLoader(data(), batch_size=batch_size)


def alone() -> list[Any]:
    """Parameters after training one process on the joined batches."""
    model = model_of(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x in loader(SIZE * SHARE):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def check(model: Any) -> None:
    begun, expected = list(model_of(0).parameters()), alone()
    for ours, wanted, first in zip(model.parameters(), expected, begun, strict=True):
        assert torch.allclose(ours, wanted, rtol=1e-12)
        assert not torch.allclose(ours, first)


def with_lightning(path: str) -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(0)
            self.backends: set[str] = set()

        def training_step(self, x: Any, _: int) -> Any:
            self.backends.add(dist.get_backend())
            loss = self.model(x).pow(2).mean()
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    nodes = int(os.environ["RR_NODES"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=SIZE // nodes,
        num_nodes=nodes,
        strategy=DDPStrategy(process_group_backend="ringreduce"),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path,
        use_distributed_sampler=False,  # its own would shuffle
    )
    module = Module()
    begun = [parameter.detach().clone() for parameter in module.parameters()]
    assert all(map(torch.equal, begun, model_of(0).parameters()))
    sampler = torch.utils.data.DistributedSampler(data(), SIZE, rank_of(), shuffle=False)
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=SHARE, sampler=sampler))
    assert trainer.global_step == STEPS
    assert module.backends == {"ringreduce"}
    check(module.model)
    dist.destroy_process_group()


def with_accelerate(path: str) -> None:
    import accelerate

    dist.init_process_group("ringreduce", init_method=f"file://{path}/store", rank=rank_of(), world_size=SIZE)
    accelerator = accelerate.Accelerator(cpu=True)
    assert (accelerator.num_processes, accelerator.process_index) == (SIZE, rank_of())
    model = model_of(rank_of())
    model, optimizer, batches = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE), loader(SHARE))
    steps = 0
    for x in batches:
        optimizer.zero_grad()
        accelerator.backward(model(x).pow(2).mean())
        optimizer.step()
        steps += 1
    assert steps == STEPS
    check(model.module)
    assert accelerator.gather(torch.tensor([rank_of()])).tolist() == [0, 1]
    assert accelerator.reduce(torch.tensor([1.0 + rank_of()])).item() == 3.0
    assert dist.get_backend() == "ringreduce"
    accelerator.end_training()  # destroys the process group too
    assert not dist.is_initialized()


RECIPE = """
    import accelerate, torch, ringreduce.torch

    torch.distributed.init_process_group("ringreduce", init_method="ringreduce://")
    accelerator = accelerate.Accelerator(cpu=True)
    total = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index])).item()
    print(f"{accelerator.process_index} of {accelerator.num_processes}: {total}\\n", end="", flush=True)
    accelerator.end_training()
"""


def test_accelerate_under_ringrun_trains_one_model(tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    assert said(RINGRUN, RECIPE, tmp_path) == ["0 of 2: 3.0", "1 of 2: 3.0"]


def rank_of() -> int:
    return int(os.environ["RINGREDUCE_RANK"])


def train(framework: str, path: str, port: int, nodes: int = 1, master: str = "127.0.0.1") -> None:
    node, local_rank = divmod(rank_of(), SIZE // nodes)
    places = {
        "RANK": rank_of(),
        "LOCAL_RANK": local_rank,
        "NODE_RANK": node,
        "WORLD_SIZE": SIZE,
        "LOCAL_WORLD_SIZE": SIZE // nodes,
        "MASTER_PORT": port,
        "RR_NODES": nodes,
    }
    os.environ.update({name: str(value) for name, value in places.items()}, MASTER_ADDR=master)
    {"lightning": with_lightning, "accelerate": with_accelerate}[framework](path)


def train_on_nodes(framework: str, path: str, master: str) -> None:
    """Each rank is a node of its own; master is the host of the first."""
    train(framework, path, 29500, SIZE, master)


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_frameworks(framework: str, run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run_ranks(train, SIZE, args=(framework, str(tmp_path), port))
