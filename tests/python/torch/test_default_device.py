"""torch.set_default_device(): what belongs in host memory stays there. "meta" is in a GPU's place, without memory.

Each case makes its inputs on the CPU, by name; its results are the same bits as without a default device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from ranks import run_ranks

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there


def numbers(*shape: int, seed: int = 0) -> Any:
    """Others on each rank."""
    generator = torch.Generator("cpu").manual_seed(10 * seed + hvd.rank())
    return torch.randn(shape, generator=generator, device="cpu")


def parameter(*shape: int) -> Any:
    """The same on all ranks."""
    return torch.nn.Parameter(torch.full(shape, 0.5, device="cpu"))


def give(parameters: Sequence[Any], step: int) -> None:
    for number, p in enumerate(parameters):
        (p * numbers(*p.shape, seed=10 * step + number)).sum().backward()


def differentiable_collectives() -> list[Any]:
    x = numbers(3 + hvd.rank(), 2).requires_grad_()
    rows, splits = hvd.alltoall(x, splits=[1, 2])
    gathered = hvd.allgather(x)
    at_root = hvd.gather(x, 0)
    (rows.sum() + gathered.square().sum() + at_root.sum()).backward()
    return [rows, splits, gathered, at_root, x.grad]


def memory_that_ranks_share() -> list[Any]:
    return [hvd.symmetric_empty(rows, 2).zero_() for rows in (0, 3)]


def sync_batch_norm() -> list[Any]:
    layer = hvd.SyncBatchNorm(3).to_empty(device="cpu")
    layer.reset_parameters()
    x = numbers(4 + hvd.rank(), 3).requires_grad_()
    output = layer(x)
    output.square().sum().backward()
    return [output, x.grad, layer.weight.grad, layer.running_mean, layer.running_var]


def powersgd() -> list[Any]:
    """Also the first step after a join(), in which ranks agree on the number of steps. No hook of backward() begins."""
    p = parameter(24, 20)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), compression=hvd.Compression.powersgd())
    for step in range(4):
        p.grad = numbers(24, 20, seed=step)
        optimizer.step()
        if step == 1:
            hvd.join()
    return [p]


def optimizer_state_of_the_root() -> list[Any]:
    p = parameter(4, 3)
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
    if hvd.rank() == 0:
        give([p], 0)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    return [optimizer.state[p]["momentum_buffer"]]


def local_sgd() -> list[Any]:
    parameters = [parameter(4, 3), parameter(5)]
    optimizer = hvd.LocalSGD(torch.optim.SGD(parameters, lr=0.1), every=2, outer=hvd.diloco(0.7, 0.9))
    for step in range(4):
        optimizer.zero_grad()
        give(parameters, step)
        optimizer.step()
    return parameters


def lbfgs() -> list[Any]:
    """With a loss that is a tensor, and one that is a number."""
    p, target = parameter(4), numbers(4)
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS([p], max_iter=3))
    for made in (torch.Tensor.detach, float):

        def closure(made: Callable[[Any], Any] = made) -> Any:
            optimizer.zero_grad()
            loss = (p - target).square().sum()
            loss.backward()
            return made(loss)

        optimizer.step(closure)
    return [p]


def norm_of_no_gradients() -> list[Any]:
    return [hvd.DistributedOptimizer(torch.optim.SGD([parameter(0)], lr=0.1)).clip_grad_norm_(1.0)]


def adasum() -> list[Any]:
    p = parameter(4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), op=hvd.Adasum)
    give([p], 0)
    optimizer.step()
    return [p]


def sparse_tensors() -> list[Any]:
    layer = torch.nn.Embedding(6, 2, sparse=True, device="cpu", _weight=parameter(6, 2).detach())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
    layer(torch.tensor([1, 2 + hvd.rank()], device="cpu")).sum().backward()
    optimizer.step()
    return [layer.weight, hvd.synchronize(hvd.sparse_allreduce_async(layer.weight.grad, "s", hvd.Sum)).to_dense()]


CASES = {
    case.__name__: case
    for case in (
        differentiable_collectives,
        memory_that_ranks_share,
        sync_batch_norm,
        powersgd,
        optimizer_state_of_the_root,
        local_sgd,
        lbfgs,
        norm_of_no_gradients,
        adasum,
        sparse_tensors,
    )
}


def compare(name: str) -> None:
    with hvd.init():
        plain = CASES[name]()
        with torch.device("meta"):
            results = CASES[name]()
        assert [result.device.type for result in results] == ["cpu"] * len(plain)
        for result, expected in zip(results, plain, strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_host_memory_is_not_of_the_default_device(name: str) -> None:
    run_ranks(compare, 2, args=(name,))
