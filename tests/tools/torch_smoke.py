"""What torch_versions.py runs on each rank: collectives, gradients, an optimizer, a compiled function. No pytest."""

from __future__ import annotations

import copy
import platform

import numpy as np
import torch

import ringreduce.torch as hvd
from ringreduce.torch import tracing
from ringreduce.torch.collectives import library


def collectives(rank: int, size: int) -> None:
    x = (torch.arange(6.0).reshape(2, 3) + rank).requires_grad_()
    total = sum(torch.arange(6.0).reshape(2, 3) + k for k in range(size))
    y = hvd.allreduce(x, op=hvd.Sum)
    assert torch.equal(y, total)
    (y * (rank + 1)).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), sum(k + 1.0 for k in range(size))))
    first, second = hvd.grouped_allreduce([x, x * 2], op=hvd.Average)
    assert torch.allclose(second, 2 * total / size)
    assert torch.allclose(first, total / size)
    assert hvd.allgather(x[: rank + 1]).shape[0] == sum(range(1, size + 1))
    assert torch.equal(hvd.broadcast(x, size - 1), torch.arange(6.0).reshape(2, 3) + size - 1)
    assert hvd.alltoall(torch.arange(size) + 10 * rank).tolist() == [10 * k + rank for k in range(size)]
    assert torch.equal(hvd.reducescatter(x.detach(), op=hvd.Sum), total[rank : rank + 1])
    assert hvd.synchronize(hvd.allreduce_async(x.to(torch.bfloat16), op=hvd.Max)).max() == 5 + size - 1
    assert hvd.allgather_object(rank) == list(range(size))


def training(rank: int, size: int, forward: str) -> None:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    reference = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    run = torch.compile(model, backend="aot_eager") if forward == "compiled" else model
    for step in range(3):
        inputs = [torch.sin(torch.arange(12.0).reshape(2, 6) * (k + 1) + step) for k in range(size)]
        optimizer.zero_grad()
        run(inputs[rank]).pow(2).sum().backward()
        optimizer.step()
        reference.zero_grad()
        (sum(alone(x).pow(2).sum() for x in inputs) / size).backward()
        reference.step()
    for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def compiled(rank: int, size: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = hvd.allreduce(x * 2, op=hvd.Sum)
        handle = hvd.allreduce_async(x.detach())
        return y + hvd.synchronize(handle) + hvd.broadcast(x, 0)

    def whole(x: torch.Tensor) -> torch.Tensor:
        hvd.barrier()
        hvd.allreduce_(x.detach() * 1)
        several = hvd.grouped_allreduce([x, hvd.allreduce(x * 2, op=hvd.Sum)])
        return several[1] + hvd.broadcast(x, 0) + hvd.allgather(x).sum() + hvd.reducescatter(several[0]).sum()

    functions = [(function, False), *([(whole, True)] if tracing.TRACEABLE else [])]
    for step, fullgraph in functions:
        found = []
        for run in (step, torch.compile(step, backend="aot_eager", fullgraph=fullgraph)):
            x = (torch.arange(float(2 * size)) + rank).requires_grad_()
            y = run(x)
            y.sum().backward()
            found.append((y.detach(), x.grad))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


def main() -> None:
    with hvd.init() as world:
        collectives(world.rank, world.size)
        for forward in ("eager", "compiled"):
            training(world.rank, world.size, forward)
        compiled(world.rank, world.size)
    graphs = "collectives in graphs" if tracing.TRACEABLE else "graphs break at collectives"
    effects = ", ordered effects" if tracing.TRACEABLE and library.ORDERED else ""
    print(f"Python {platform.python_version()}, NumPy {np.__version__}: passed; {graphs}{effects}")


if __name__ == "__main__":
    main()
