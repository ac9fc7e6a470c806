"""What is built on torch.distributed, over the backend ringreduce: trains as one process does on the joined batch."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import ringreduce.torch  # noqa: E402, F401  # registers the backend

STEPS, SHARE, WIDTH = 4, 6, 8


def join(path: str) -> tuple[int, int]:
    torch.use_deterministic_algorithms(True)
    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    dist.init_process_group("ringreduce", init_method=f"file://{path}", rank=rank, world_size=size)
    return rank, size


def model_of(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 16), torch.nn.Tanh(), torch.nn.Linear(16, 12), torch.nn.Tanh(), torch.nn.Linear(12, 3)
    ).double()


def batch(step: int, rank: int) -> Any:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(SHARE, WIDTH, dtype=torch.float64, generator=generator) * (rank + 1)


def loss(model: Any, x: Any) -> Any:
    return model(x).pow(2).mean()


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.05)


def alone(size: int, optimizer_of: Callable[[Any], Any] = adam, seed: int = 0) -> dict[str, Any]:
    """Parameters after training one process on the joined batches."""
    model = model_of(seed)
    optimizer = optimizer_of(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, torch.cat([batch(step, rank) for rank in range(size)])).backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.named_parameters()}


def train(model: Any, optimizer: Any, rank: int) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, batch(step, rank)).backward()
        optimizer.step()


def check(model: Any, expected: dict[str, Any], tolerance: float = 1e-12) -> None:
    for name, value in model.named_parameters():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        wanted = expected[name.removeprefix("_orig_mod.").removeprefix("module.")]
        assert torch.allclose(whole, wanted, rtol=tolerance, atol=tolerance), name


def data_parallel(rank: int, size: int) -> None:
    expected = alone(size)
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb": 1e-4}):
        # Ranks begin with different parameters: DDP broadcasts rank 0's.
        model = DistributedDataParallel(model_of(rank), **options)
        train(model, adam(model.parameters()), rank)
        check(model, expected)

    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook, tolerance in (
        (default_hooks.allreduce_hook, 1e-12),
        (default_hooks.fp16_compress_hook, 1e-2),
    ):
        model = DistributedDataParallel(model_of(rank))
        model.register_comm_hook(None, hook)
        sgd = torch.optim.SGD(model.parameters(), lr=0.05)
        train(model, sgd, rank)
        check(model, alone(size, lambda parameters: torch.optim.SGD(parameters, lr=0.05)), tolerance)
    model = DistributedDataParallel(model_of(rank))
    model.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2),
        powerSGD_hook.powerSGD_hook,
    )
    train(model, adam(model.parameters()), rank)

    model = DistributedDataParallel(model_of(rank))
    for part in range(2):  # two backward passes, one reduction
        with model.no_sync() if part == 0 else nullcontext():
            (loss(model, batch(part, rank)) / 2).backward()
    single = model_of(0)
    for part in range(2):
        (loss(single, torch.cat([batch(part, r) for r in range(size)])) / 2).backward()
    for ours, theirs in zip(model.parameters(), single.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12)

    # Uneven batches: join() shadows the collectives of ranks that still have some.
    model = DistributedDataParallel(model_of(rank))
    steps = 0
    with model.join():
        for step in range(2 + rank):
            loss(model, batch(step, rank)).backward()
            steps += 1
    assert steps == 2 + rank


def sparse_gradients(rank: int, size: int) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(6, 4, sparse=True).double()
    model = DistributedDataParallel(table)
    model(torch.tensor([rank, 3])).pow(2).sum().backward()
    weight = table.weight.detach()
    expected = torch.zeros_like(weight)
    for r in range(size):
        for row in (r, 3):
            expected[row] += 2 * weight[row] / size
    assert table.weight.grad.is_sparse
    assert torch.allclose(table.weight.grad.to_dense(), expected)


def sharded(rank: int, size: int, path: str) -> None:
    from torch.distributed.checkpoint import load, save
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    expected = alone(size)
    mesh = init_device_mesh("cpu", (size,))
    model = model_of(0)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adam(model.parameters())
    train(model, optimizer, rank)
    check(model, expected)

    state = {"model": model.state_dict(), "steps": STEPS}
    save(state, checkpoint_id=path)
    other = model_of(1)
    fully_shard(other, mesh=mesh)
    restored = {"model": other.state_dict(), "steps": 0}
    load(restored, checkpoint_id=path)
    other.load_state_dict(restored["model"])
    assert restored["steps"] == STEPS
    check(other, expected)

    plain = DistributedDataParallel(model_of(rank))
    zero = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.Adam, lr=0.05)
    train(plain, zero, rank)
    check(plain, expected)
    mine = len(zero.optim.state_dict()["state"])
    assert 0 < mine < len(list(plain.parameters()))


def distributed_tensors(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    a = torch.arange(36.0).view(6, 6)
    b = torch.arange(36.0).view(6, 6).t() - 7
    for source in (Shard(0), Shard(1), Replicate()):
        for target in (Shard(1), Replicate(), Shard(0)):
            moved = distribute_tensor(a, mesh, [source]).redistribute(mesh, [target])
            assert torch.equal(moved.full_tensor(), a)
    for left, right in ((Shard(0), Replicate()), (Replicate(), Shard(1)), (Shard(1), Shard(0))):
        product = distribute_tensor(a, mesh, [left]) @ distribute_tensor(b, mesh, [right])
        assert torch.equal(product.redistribute(mesh, [Shard(0)]).full_tensor(), a @ b)
    partial = distribute_tensor(a, mesh, [Shard(1)]).sum(dim=1)
    assert partial.placements == (Partial(),)
    assert torch.equal(partial.full_tensor(), a.sum(dim=1))
    assert mesh.get_group("dp").size() == size


def functional(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functions

    world = dist.group.WORLD

    def compute(x: Any) -> Any:
        total = functions.all_reduce(x * 2, "sum", world)
        gathered = functions.all_gather_tensor(total + x, 0, world)
        part = functions.reduce_scatter_tensor(gathered, "sum", 0, world)
        swapped = functions.all_to_all_single(
            torch.cat([part * (1 - 2 * other) for other in range(size)]), None, None, world
        )
        return functions.broadcast(swapped, 1, world) + 1

    compiled = torch.compile(compute, backend="aot_eager", fullgraph=True)
    xs = [torch.arange(4.0) + 10 * r for r in range(size)]
    total = 2 * sum(xs)
    parts = [size * (total + x) for x in xs]
    expected = torch.cat([-part for part in parts]) + 1  # what rank 1 received
    assert torch.equal(compute(xs[rank]), expected)
    assert torch.equal(compiled(xs[rank]), expected)

    model = torch.compile(DistributedDataParallel(model_of(rank)), backend="aot_eager")
    train(model, adam(model.parameters()), rank)
    check(model, alone(size))


def train_with_all(path: str) -> None:
    rank, size = join(f"{path}/store")
    data_parallel(rank, size)
    sparse_gradients(rank, size)
    sharded(rank, size, f"{path}/checkpoint")
    distributed_tensors(rank, size)
    functional(rank, size)
    dist.barrier()
    dist.destroy_process_group()


def test_training_agrees_with_one_process(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(train_with_all, 2, args=(str(tmp_path),))
