"""Operations in torch's profiler: each call and each wait is a range with its name; without a profiler none is."""

import ast
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402  # after the check that torch is there

import ringreduce  # noqa: E402
import ringreduce.torch as hvd  # noqa: E402
from ringreduce.torch import profiling, tracing  # noqa: E402

OURS = "ringreduce."


@contextmanager
def profiled() -> Iterator[list[Any]]:
    """Our ranges, in the order in which they begin; empty until the block ends."""
    ranges: list[Any] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield ranges
    ranges += sorted((e for e in profile.events() if e.name.startswith(OURS)), key=lambda e: e.time_range.start)


def names(ranges: list[Any]) -> list[str]:
    return [one.name.removeprefix(OURS) for one in ranges]


def call_each(rank: int) -> None:
    """Every collective of one tensor, with the results that it has on two ranks."""
    x = torch.arange(4.0) + rank
    both = x * 2 + 1 - 2 * rank
    assert torch.equal(hvd.allreduce(x, op=hvd.Sum, name="loss"), both)
    handle = hvd.allreduce_async(x, op=hvd.Sum, name="later")
    assert torch.equal(hvd.synchronize(handle), both)
    assert torch.equal(hvd.synchronize(handle), both)
    assert torch.equal(hvd.grouped_allreduce([x, x], op=hvd.Sum, name="pair")[1], both)
    assert hvd.allgather(x[:1]).tolist() == [0, 1]
    assert hvd.broadcast(x, 1, name="copy").tolist() == [1, 2, 3, 4]
    assert hvd.alltoall(x[:2]).tolist() == [rank, rank + 1]
    assert torch.equal(hvd.reducescatter(x, op=hvd.Sum, name="own"), both[2 * rank :][:2])
    hvd.reduce(x, 0, name="root")
    hvd.barrier()
    assert hvd.broadcast_object(rank + 5) == 5
    tracked = x.clone().requires_grad_()
    hvd.allreduce(tracked, op=hvd.Sum, name="tracked").sum().backward()
    assert tracked.grad is not None
    assert tracked.grad.tolist() == [2] * 4
    assert hvd.join() in (0, 1)


RANGES = [
    "allreduce loss", "allreduce later", "wait allreduce later", "allreduce pair", "wait allreduce pair", "allgather",
    "wait allgather", "broadcast copy", "wait broadcast copy", "alltoall", "wait alltoall", "reducescatter own",
    "wait reducescatter own", "reduce root", "wait reduce root", "barrier", "broadcast_object", "allreduce tracked",
    "allreduce", "join",
]  # fmt: skip
"""Those of call_each(): calls that wait have one, others have two, and a handle that has been waited for no more."""


def profile_collectives() -> list[str]:
    with hvd.init() as world, profiled() as ranges:
        call_each(world.rank)
    return names(ranges)


def test_each_call_and_each_wait_is_a_range(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(profile_collectives, 2) == [RANGES] * 2


def steps(rank: int) -> Callable[[], None]:
    """A step of training with DistributedOptimizer, one bucket of 9 MB; two have been made."""
    model = torch.nn.Linear(1500, 1500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.full((2, 1500), rank + 1.0)).mean().backward()
        optimizer.step()

    step()
    step()
    return step


def profile_step() -> None:
    with hvd.init() as world:
        step = steps(world.rank)
        with profiled() as ranges:
            step()
        copy, call, whole, wait = ranges
        bucket = call.name.removeprefix(f"{OURS}allreduce ")
        assert bucket.startswith("DistributedOptimizer.")
        wanted = [
            "copy gradient",
            f"allreduce {bucket}",
            "DistributedOptimizer.synchronize",
            f"wait allreduce {bucket}",
        ]
        assert names(ranges) == wanted
        assert copy.time_range.end <= call.time_range.start
        assert call.time_range.end <= whole.time_range.start  # launched by backward()
        assert wait.time_range.end <= whole.time_range.end  # within it


def test_a_step_of_the_optimizer_has_ranges(run_ranks: Callable[..., Any]) -> None:
    run_ranks(profile_step, 2)


def profile_process_group(folder: str) -> list[str]:
    rank = int(os.environ["RINGREDUCE_RANK"])
    dist.init_process_group("ringreduce", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x = torch.full((3,), rank + 1.0)
    with profiled() as ranges:
        dist.all_reduce(x)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        dist.barrier()
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x)
    assert x.tolist() == [6] * 3
    dist.destroy_process_group()
    return names(ranges)


def test_a_process_group_of_torch_has_ranges(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    first, second = run_ranks(profile_process_group, 2, args=(str(tmp_path),))
    # A torch before 2.8 does not say that a caller waits at once: then such a call has two ranges as well.
    common = [name for name in first if name != "wait allreduce"]
    assert common == ["allreduce", "allreduce", "barrier", "send to rank 1", "wait send to rank 1"]
    assert "wait allreduce" in first
    assert second[-2:] == ["recv from any rank", "wait recv from any rank"]


def run_without_profiler() -> None:
    def fail(name: str) -> NoReturn:
        raise AssertionError(f"{name}: a range, and there is no profiler")

    profiling.record_function = fail  # type: ignore[attr-defined]
    with hvd.init() as world:
        call_each(world.rank)
        steps(world.rank)()
        with profiled(), pytest.raises(AssertionError, match="barrier: a range"):
            hvd.barrier()


def test_without_a_profiler_there_are_no_ranges(run_ranks: Callable[..., Any]) -> None:
    run_ranks(run_without_profiler, 2)


def profile_compiled() -> list[str]:
    def loss(x: Any) -> Any:
        return hvd.allreduce(x * 2, op=hvd.Sum, name="loss").sum()

    with hvd.init() as world:
        x = torch.ones(3, requires_grad=True)
        with profiled() as ranges:  # compiled while the profiler is on
            whole = torch.compile(loss, backend="aot_eager", fullgraph=True)
            result = whole(x)
            result.backward()
        assert (result.item(), x.grad.tolist()) == (12, [4] * 3)
        layer, x = hvd.SyncBatchNorm(3), torch.eye(3) * (world.rank + 1)
        with profiled():  # its graph breaks, between its communication too
            normed = torch.compile(layer, backend="aot_eager")(x)
        assert torch.allclose(normed, layer(x))
    return names(ranges)


@pytest.mark.skipif(not tracing.TRACEABLE, reason=f"torch {torch.__version__}: operators in graphs need torch 2.4")
def test_compiled_functions_have_ranges(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(profile_compiled, 2) == [["allreduce loss", "allreduce"]] * 2


def test_the_place_of_every_operations_name_is_known() -> None:
    stub = ast.parse((Path(ringreduce.__file__).parent / "_core.pyi").read_text())
    (group,) = (node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "Group")
    methods = [node for node in group.body if isinstance(node, ast.FunctionDef)]
    arguments = {method.name: [argument.arg for argument in method.args.args[1:]] for method in methods}
    assert {name: its.index("name") for name, its in arguments.items() if "name" in its} == profiling.NAME_AT
    messages = {name: its for name, its in arguments.items() if name.endswith("_async") and "name" not in its}
    assert messages.keys() == {"send_async", "recv_async"}
    assert all(its[profiling.PEER_AT].endswith("_rank") for its in messages.values())
