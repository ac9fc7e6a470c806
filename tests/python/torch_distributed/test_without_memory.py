"""Tensors without memory of their own: what a functional collective returns, DTensors, zeros, wrappers, traced ones.

Functional collectives return tensors that are waited for when they are used; these work everywhere. The others are
refused on every rank before anything is sent, or the core would read and write at address 0.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_distributed import join  # noqa: E402
from torch.distributed import _functional_collectives as functions  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.collectives import buffers  # noqa: E402
from ringreduce.errors import InvalidArgumentError  # noqa: E402

COUNT = 6


class Wrapper(torch.Tensor):
    """A wrapper subclass as torch's documentation has it; no operation is ever called on it."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.detach.default, torch.ops.aten.empty_like.default):
            return cls(args[0].inner)
        raise NotImplementedError(f"{func} of a Wrapper")


def distributed_tensor(whole: torch.Tensor) -> torch.Tensor:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)


def fake_tensor() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(COUNT)


def freed(offset: int = 0) -> torch.Tensor:
    tensor = torch.ones(offset + COUNT)[offset:]
    tensor.untyped_storage().resize_(0)
    return tensor


BARE: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "DTensor": (lambda: distributed_tensor(torch.ones(COUNT)), r"use tensor\.to_local\(\).*tensor\.full_tensor\(\)"),
    "zeros": (lambda: torch._efficientzerotensor(COUNT), r"use tensor\.clone\(\)"),
    "wrapper": (lambda: Wrapper(torch.ones(COUNT)), r"\(a Wrapper\) has no memory of its own.*Pass the plain tensors"),
    "fake": (fake_tensor, r"\(a FakeTensor\) has no memory of its own"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(COUNT)), "has no memory of its own"),
    "freed": (freed, r"memory was freed.*unshard\(\)"),
    "part of what was freed": (lambda: freed(10), r"memory was freed.*unshard\(\)"),
}
WRITERS: dict[str, Callable[[Any], Any]] = {
    "hvd.allreduce_": hvd.allreduce_,
    "hvd.allreduce_async_": hvd.allreduce_async_,
    "hvd.grouped_allreduce_": lambda tensor: hvd.grouped_allreduce_([torch.ones(2), tensor]),
    "hvd.broadcast_": lambda tensor: hvd.broadcast_(tensor, 0),
    "hvd.broadcast_parameters": lambda tensor: hvd.broadcast_parameters([torch.ones(2), tensor], 0),
    "hvd.recv": lambda tensor: hvd.recv(tensor, source=1 - hvd.rank()),
}
READERS: dict[str, Callable[[Any], Any]] = {
    "hvd.allreduce": hvd.allreduce,
    "hvd.allreduce_async": hvd.allreduce_async,
    "hvd.allreduce with Adasum": lambda tensor: hvd.allreduce(tensor, op=hvd.Adasum),
    "hvd.grouped_allreduce": lambda tensor: hvd.grouped_allreduce([torch.ones(2), tensor]),
    "hvd.allgather": hvd.allgather,
    "hvd.grouped_allgather": lambda tensor: hvd.grouped_allgather([torch.ones(2), tensor]),
    "hvd.reducescatter": hvd.reducescatter,
    "hvd.alltoall": hvd.alltoall,
    "hvd.broadcast": lambda tensor: hvd.broadcast(tensor, 0),
    "hvd.reduce": lambda tensor: hvd.reduce(tensor, 0),
    "hvd.gather": lambda tensor: hvd.gather(tensor, 0),
    "hvd.send": lambda tensor: hvd.send(tensor, 1 - hvd.rank()),
}
GROUP: dict[str, Callable[[Any], Any]] = {
    "all_reduce": dist.all_reduce,
    "all_reduce, async": lambda tensor: dist.all_reduce(tensor, async_op=True),
    "all_reduce, coalesced": lambda tensor: dist.group.WORLD.allreduce_coalesced([torch.ones(2), tensor]),
    "reduce": lambda tensor: dist.reduce(tensor, 0),
    "broadcast": lambda tensor: dist.broadcast(tensor, 0),
    "all_gather": lambda tensor: dist.all_gather([torch.empty(COUNT) for _ in range(2)], tensor),
    "all_gather into": lambda tensor: dist.all_gather([tensor, tensor], torch.empty(COUNT)),
    "all_gather_into_tensor": lambda tensor: dist.all_gather_into_tensor(torch.empty(2 * COUNT), tensor),
    "reduce_scatter": lambda tensor: dist.reduce_scatter(torch.empty(COUNT), [tensor, tensor]),
    "reduce_scatter_tensor": lambda tensor: dist.reduce_scatter_tensor(torch.empty(COUNT // 2), tensor),
    "scatter": lambda tensor: dist.scatter(tensor, [torch.ones(COUNT)] * 2 if dist.get_rank() == 0 else None, 0),
    "gather": lambda tensor: dist.gather(tensor, [torch.ones(COUNT)] * 2 if dist.get_rank() == 0 else None, 0),
    "all_to_all": lambda tensor: dist.all_to_all([torch.empty(COUNT) for _ in range(2)], [tensor, tensor]),
    "all_to_all_single": lambda tensor: dist.all_to_all_single(torch.empty(COUNT), tensor),
    "send": lambda tensor: dist.send(tensor, 1 - dist.get_rank()),
    "recv": lambda tensor: dist.recv(tensor, 1 - dist.get_rank()),
}


def refuse(path: str) -> None:
    join(path)
    hvd.init()
    for what, (make, text) in BARE.items():
        tensor = make()
        for calls in (GROUP, WRITERS, {} if what == "zeros" else READERS):
            for name, call in calls.items():
                try:
                    with pytest.raises(hvd.InvalidArgumentError, match=text):
                        call(tensor)
                except BaseException as error:
                    raise AssertionError(f"{name} of {what}") from error
    total = torch.ones(COUNT)
    dist.all_reduce(total)  # nobody has been left waiting
    assert torch.equal(hvd.allreduce(total, op=hvd.Sum), torch.full((COUNT,), 4.0))


def test_what_has_no_memory_is_refused(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(refuse, 2, args=(str(tmp_path),))


@pytest.mark.parametrize("what", [what for what in BARE if what != "DTensor"])
def test_the_api_for_arrays_refuses_it_too(what: str) -> None:
    """DLPack tells of no memory by an address of 0, for which NumPy takes memory of its own, with anything in it."""
    tensor = BARE[what][0]()
    with pytest.raises(InvalidArgumentError, match="has no memory that could be communicated"):
        buffers.writable(tensor)
    if what == "zeros":
        assert buffers.readable(tensor).tolist() == [0.0] * COUNT
    else:
        with pytest.raises(InvalidArgumentError, match="has no memory that could be communicated"):
            buffers.readable(tensor)


def test_the_api_for_arrays_reads_lazily_negated_tensors_with_their_sign() -> None:
    """Their memory has the other one, and DLPack does not tell."""
    tensor = (torch.ones(COUNT, dtype=torch.complex64) * (1 + 2j)).conj().imag
    assert tensor.is_neg()
    before = buffers.copied()
    assert buffers.readable(tensor).tolist() == [-2.0] * COUNT
    assert buffers.copied() == before + 4 * COUNT
    with pytest.raises(InvalidArgumentError, match=r"negated lazily.*resolve_neg\(\)"):
        buffers.writable(tensor)
    assert tensor.tolist() == [-2.0] * COUNT


def use(path: str) -> None:
    """A functional collective's results, and zeros where they are only read."""
    rank, size = join(path)
    hvd.init()
    total = torch.arange(1.0, COUNT + 1) * 3

    def result() -> torch.Tensor:
        tensor = functions.all_reduce(torch.arange(1.0, COUNT + 1) * (rank + 1), "sum", dist.group.WORLD)
        assert isinstance(tensor, functions.AsyncCollectiveTensor)
        return tensor

    for call in (hvd.allreduce, hvd.allreduce_, lambda x: hvd.allreduce_async(x).wait(), lambda x: hvd.broadcast(x, 1)):
        assert torch.equal(call(result()) + 0, total)
    assert torch.equal(hvd.grouped_allreduce([result(), torch.ones(2)], op=hvd.Sum)[0], total * size)
    assert torch.equal(hvd.allgather(result()), total.repeat(size))
    assert torch.equal(hvd.allreduce(result().view(2, 3).t()), total.view(2, 3).t())
    parameters = [result(), torch.full((2,), float(rank))]
    hvd.broadcast_parameters(parameters, 1)
    assert parameters[1].tolist() == [1.0, 1.0]

    mine = result()
    dist.all_reduce(mine)
    assert torch.equal(mine + 0, total * size)  # written where the result lies
    dist.broadcast(mine, 0)
    gathered = [torch.empty(COUNT) for _ in range(size)]
    dist.all_gather(gathered, result())
    assert torch.equal(gathered[1 - rank], total)
    into = [result() for _ in range(size)]
    dist.all_gather(into, torch.full((COUNT,), float(rank)))
    assert [float(tensor[0]) for tensor in into] == [0.0, 1.0]
    swapped = torch.empty(COUNT)
    dist.all_to_all_single(swapped, result())
    assert torch.equal(swapped, total.view(size, -1)[rank].repeat(size))
    incoming = result()
    works = [dist.irecv(incoming, 1 - rank), dist.isend(result() + rank, 1 - rank)]
    for work in works:
        work.wait()
    assert torch.equal(incoming + 0, total + 1 - rank)

    zeros = torch._efficientzerotensor(COUNT)
    for call in (hvd.allreduce, lambda x: hvd.allreduce_async(x).wait(), lambda x: hvd.broadcast(x, 1)):
        assert torch.equal(call(zeros), torch.zeros(COUNT))
    empty = torch.ones(0)
    assert hvd.allreduce(empty).shape == (0,)
    dist.all_reduce(empty)


def test_results_of_functional_collectives_are_waited_for(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(use, 2, args=(str(tmp_path),))


def optimize(path: str) -> None:
    join(path)
    hvd.init()
    parameter = torch.nn.Parameter(distributed_tensor(torch.ones(COUNT)))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    for settings in ({}, {"shard_step": True}, {"op": hvd.Adasum}):
        with pytest.raises(hvd.InvalidArgumentError, match=r"weight is a DTensor without memory.*the plain optimizer"):
            hvd.DistributedOptimizer(optimizer, [("weight", parameter)], **settings)
    plain = torch.nn.Parameter(torch.ones(2))
    distributed = hvd.DistributedOptimizer(torch.optim.SGD([plain], lr=0.1))
    with pytest.raises(hvd.InvalidArgumentError, match=r"noname\.1\.0 is a DTensor"):
        distributed.add_param_group({"params": [parameter]})
    plain.sum().backward()
    distributed.step()
    assert len(distributed.param_groups) == 1
    with pytest.raises(hvd.InvalidArgumentError, match="DTensor"):
        hvd.broadcast_parameters({"a": plain.data, "weight": parameter.data}, 0)
    if hvd.rank() == 0:  # the others have nothing that they could refuse
        parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    else:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(COUNT))], lr=0.1)
    with pytest.raises(hvd.InvalidArgumentError, match=r"of the root's state, a DTensor .*to_local"):
        hvd.broadcast_optimizer_state(optimizer, 0)
    # A large gradient without memory is copied to its place by torch, not from address 0.
    large = torch.nn.Parameter(torch.zeros(3 << 20))
    ones = torch.ones_like(large)

    def put(parameter: torch.Tensor) -> None:
        parameter.grad = functions.all_reduce(ones, "sum", dist.group.WORLD)

    large.register_post_accumulate_grad_hook(put)
    distributed = hvd.DistributedOptimizer(torch.optim.SGD([large], lr=1.0))
    for step in (1, 2):  # the bucket is laid out in the first
        distributed.zero_grad()
        large.sum().backward()
        distributed.step()
        assert torch.equal(large.detach(), -2.0 * step * ones)


def test_optimizers_of_distributed_tensors_are_refused(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(optimize, 2, args=(str(tmp_path),))
