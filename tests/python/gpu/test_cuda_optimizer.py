"""DistributedOptimizer with CUDA parameters: equal to one process, compiled, refused in CUDA graphs."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_ranks import environment, start
from ranks import run_ranks

STEPS = 5


pytestmark = pytest.mark.usefixtures("torch_gpu")


def model_on(torch: Any, device: Any) -> Any:
    """A small model with large and small parameters, the same on every rank."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 300)]
    return torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Linear(300, 10)).to(device)


def batch(torch: Any, device: Any, step: int, rank: int) -> tuple[Any, Any]:
    """One rank's inputs and labels of a step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (16,), generator=generator)
    return torch.randn(16, 64, generator=generator).to(device), labels.to(device)


def alone(torch: Any, device: Any, ranks: int, make: Any, clip: float | None = None) -> list[Any]:
    """What one process makes of all ranks' batches together."""
    model = model_on(torch, device)
    optimizer = make(model.parameters())
    for step in range(STEPS):
        parts = [batch(torch, device, step, rank) for rank in range(ranks)]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(torch.cat([x for x, _ in parts])), torch.cat([y for _, y in parts])
        ).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_close(torch: Any, model: Any, expected: list[Any]) -> None:
    for parameter, want in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter, want, rtol=1e-4, atol=1e-5), (parameter - want).abs().max()


def assert_alike(torch: Any, hvd: Any, model: Any) -> None:
    """All ranks have the same bits."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).cpu()
    everybody = hvd.allgather(flat.unsqueeze(0))
    assert all(torch.equal(everybody[0].view(torch.int32), other.view(torch.int32)) for other in everybody)


def trained(kind: str, options: dict[str, Any]) -> None:
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()

    def make(parameters: Any) -> Any:
        if kind == "adam":
            return torch.optim.Adam(parameters, lr=0.01, eps=1e-3)  # so that noise in what is nearly 0 stays small
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    clip = options.pop("clip", None)
    scaled = options.pop("scaled", False)
    expected = alone(torch, device, size, make, clip)
    model = model_on(torch, device)
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    hvd.broadcast_parameters(model.state_dict(), 0)
    plain = make(model.parameters())
    hvd.broadcast_optimizer_state(plain, 0)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **options)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0) if scaled else None
    for step in range(STEPS):
        inputs, labels = batch(torch, device, step, rank)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        if scaler is not None:
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
            continue
        loss.backward()
        if clip is not None:
            optimizer.clip_grad_norm_(clip)
        optimizer.step()
    assert_close(torch, model, expected)
    assert_alike(torch, hvd, model)
    assert all(parameter.is_cuda for parameter in model.parameters())


@pytest.mark.parametrize(
    ("size", "kind", "path", "options"),
    [
        (2, "sgd", "auto", {}),
        (2, "sgd", "nccl", {}),
        (4, "adam", "auto", {}),
        (2, "sgd", "auto", {"clip": 0.1}),
        (2, "sgd", "auto", {"scaled": True}),
        (2, "adam", "auto", {"shard_step": True}),
        (2, "adam", "nccl", {"shard_step": True}),
        (2, "sgd", "auto", {"gradient_as_bucket_view": False}),
    ],
)
def test_equal_to_one_process(size: int, kind: str, path: str, options: dict[str, Any]) -> None:
    run_ranks(trained, size, args=(kind, options), env=environment(path))


def steady() -> list[str]:
    """A step of which no call waits for the whole GPU: torch would raise, and the profiler sees no such call."""
    torch, hvd, device = start()
    from torch.profiler import ProfilerActivity, profile

    model = model_on(torch, device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    inputs, labels = batch(torch, device, 0, hvd.rank())

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        step()
    return sorted({event.key for event in trace.key_averages()})


def test_a_steady_step_synchronizes_no_stream_or_gpu() -> None:
    for names in run_ranks(steady, 2):
        waits = [name for name in names if "Synchronize" in name and name != "cudaDeviceSynchronize"]
        assert not waits, names


def captured() -> None:
    """A call while a CUDA graph is captured is refused, and the next one outside works."""
    torch, hvd, device = start()
    tensor = torch.ones(1009, device=device)
    hvd.allreduce_(tensor, op=hvd.Sum)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.raises(hvd.UnavailableError, match="outside of the capture"):
        hvd.allreduce(tensor, op=hvd.Sum)
    hvd.allreduce_(tensor, op=hvd.Sum)
    assert torch.equal(tensor, torch.full_like(tensor, float(hvd.size() ** 2)))


def test_calls_in_a_cuda_graph_are_refused() -> None:
    run_ranks(captured, 2)


def compiled() -> None:
    """A compiled function with collectives in it, and a compiled model under DistributedOptimizer."""
    torch, hvd, device = start()
    size, rank = hvd.size(), hvd.rank()

    @torch.compile(backend="aot_eager")
    def function(x: Any) -> Any:
        return hvd.allreduce(x * 2.0, op=hvd.Sum, name="inside") + 1.0

    x = torch.full((33,), float(rank + 1), device=device)
    for _ in range(2):
        assert torch.equal(function(x), torch.full_like(x, 1.0 + 2.0 * sum(range(1, size + 1))))

    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    expected = alone(torch, device, size, make)
    model = model_on(torch, device)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    run = torch.compile(model, backend="aot_eager")
    for number in range(STEPS):
        inputs, labels = batch(torch, device, number, rank)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run(inputs), labels).backward()
        optimizer.step()
    assert_close(torch, model, expected)


def test_torch_compile() -> None:
    run_ranks(compiled, 2)


def compressed() -> None:
    """What compresses gradients does so on the GPU: close to the plain step."""
    torch, hvd, device = start()

    def make(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)

    expected = alone(torch, device, hvd.size(), make)
    for compression in (
        hvd.Compression.fp16,
        hvd.Compression.bf16,
        hvd.Compression.int8(),
        hvd.Compression.powersgd(8),
    ):
        model = model_on(torch, device)
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), compression=compression
        )
        for number in range(STEPS):
            inputs, labels = batch(torch, device, number, hvd.rank())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        assert_alike(torch, hvd, model)
        for parameter, want in zip(model.parameters(), expected, strict=True):
            assert (parameter - want).abs().max() < 0.1
            assert parameter.is_cuda


def test_compression() -> None:
    run_ranks(compressed, 2)
