"""Training on N ranks is training on one rank with the joined batch, also when the ranks' shares differ."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))

import models  # noqa: E402  # of the examples

import ringreduce.torch as hvd  # noqa: E402

STEPS = 20
LR = 0.2
MODELS: dict[str, Callable[[], Any]] = {
    "lenet": models.lenet,
    "small mlp": lambda: models.mlp(hidden=128),
    "mlp": lambda: models.mlp(hidden=2048),  # 46 MB of gradients in float64: two buckets, and a tensor of 34 MB
}


def make(name: str, dtype: Any) -> Any:
    torch.manual_seed(7)
    return MODELS[name]().to(dtype)


def joined_batch(step: int, count: int, dtype: Any) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    images = torch.rand(count, 1, 28, 28, generator=generator, dtype=torch.float64).to(dtype)
    return images, torch.randint(0, 10, (count,), generator=generator)


def uneven_share(count: int, rank: int, size: int) -> slice:
    """Shares as 1 : 2 : ... : size; the last rank has what is left over."""
    unit = count // (size * (size + 1) // 2)
    start = unit * (rank * (rank + 1) // 2)
    return slice(start, count if rank == size - 1 else start + unit * (rank + 1))


def loss_of(model: Any, images: Any, labels: Any, joined: int) -> Any:
    return torch.nn.functional.cross_entropy(model(images), labels, reduction="sum") / joined


@functools.cache
def train_alone(name: str, count: int, dtype: Any) -> list[Any]:
    model = make(name, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *joined_batch(step, count, dtype), count).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train_together(name: str, count: int, dtype: Any, options: dict[str, Any]) -> tuple[float, Any]:
    """(largest excess of a reduced gradient over its bound, the parameters on rank 0). All ranks end alike."""
    with hvd.init() as world:
        model = make(name, dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 if world.rank == 0 else float("nan"))
        plain = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Sum, **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        excess = 0.0
        for step in range(STEPS):
            images, labels = joined_batch(step, count, dtype)
            mine = uneven_share(count, world.rank, world.size)
            optimizer.zero_grad(set_to_none=step % 3 != 0)
            loss = loss_of(model, images[mine], labels[mine], count)
            if step % 10 == 0:
                own = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                excess = max(excess, max(map(excess_of, own, (parameter.grad for parameter in model.parameters()))))
        sums = [[parameter.double().sum().item() for parameter in model.parameters()]]
        assert hvd.allgather_object(sums) == sums * 0 + [sums] * world.size
        return excess, [parameter.detach() for parameter in model.parameters()] if world.rank == 0 else None


def excess_of(own: Any, reduced: Any) -> float:
    """By what factor a reduced gradient is off the sum of the ranks' own, in units of (N - 1) eps sum|x|."""
    every = hvd.allgather(own.detach().double().unsqueeze(0).contiguous())
    bound = (len(every) - 1) * torch.finfo(reduced.dtype).eps * every.abs().sum(0)
    off = (reduced.double() - every.sum(0)).abs()
    return float((off / bound.clamp_min(torch.finfo(torch.float64).tiny)).max())


def relative(theirs: list[Any], reference: list[Any]) -> float:
    return max(
        float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(theirs, reference, strict=True)
    )


CASES = [("lenet", 43, 2), ("lenet", 43, 3), ("lenet", 43, 4), ("small mlp", 64, 2), ("small mlp", 64, 3)]
CASES += [("small mlp", 67, 4), ("mlp", 30, 2)]


@pytest.mark.parametrize(("name", "count", "size"), CASES)
def test_ranks_train_as_one(name: str, count: int, size: int, run_ranks: Callable[..., Any]) -> None:
    reference = train_alone(name, count, torch.float64)
    excess, ours = run_ranks(train_together, size, args=(name, count, torch.float64, {}))[0]
    assert relative(ours, reference) <= 1e-12
    assert excess <= 1

    excess, ours = run_ranks(train_together, size, args=(name, count, torch.float32, {}))[0]
    assert excess <= 1
    rounding = relative(train_alone(name, count, torch.float32), reference)
    assert relative(ours, reference) <= 4 * rounding


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": False},
        {"groups": 3},
        {"compression": hvd.Compression.fp16},
    ],
    ids=lambda options: next(iter(options)),
)
def test_ranks_train_as_one_in_other_settings(options: dict[str, Any], run_ranks: Callable[..., Any]) -> None:
    reference = train_alone("lenet", 43, torch.float64)
    _, ours = run_ranks(train_together, 3, args=("lenet", 43, torch.float64, options))[0]
    assert relative(ours, reference) <= (5e-2 if "compression" in options else 1e-12)


def test_two_runs_give_the_same_bits(run_ranks: Callable[..., Any]) -> None:
    runs = [run_ranks(train_together, 3, args=("lenet", 43, torch.float32, {}))[0][1] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
