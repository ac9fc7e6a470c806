"""Which tensors ringreduce.torch takes, and the class and key phrase of each error that Horovod's users know.

TABLE is the error contract of Horovod's torch API: situation, class, phrase. Every rank raises, and the job goes on.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")

from test_torch import DTYPES, array_of, tensor_of  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402
from ringreduce.torch.submission import own_rows  # noqa: E402
from ringreduce.torch.tensors import operand  # noqa: E402

INTERNAL, VALUE = "HorovodInternalError", "ValueError"
SAME_NAME = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed.  If you want to request another tensor, use a different tensor name."
)
SHUT_DOWN = "Horovod has been shut down"
TABLE = {
    "shape": (INTERNAL, "One rank sent a tensor of shape [17, 17], but another rank sent a tensor of shape [18, 18]."),
    "shape, async": (INTERNAL, "Mismatched ALLREDUCE tensor shapes"),
    "shape, in a graph": (INTERNAL, "Mismatched ALLREDUCE tensor shapes"),
    "shape, broadcast": (INTERNAL, "Mismatched BROADCAST tensor shapes"),
    "shape, reducescatter": (INTERNAL, "Mismatched REDUCESCATTER tensor shapes"),
    "shape, group": (INTERNAL, "Mismatched grouped ALLREDUCE tensor shapes"),
    "shape, group of gathers": (INTERNAL, "Mismatched ALLGATHER tensor shapes"),
    "dims": (INTERNAL, "One rank sent a tensor of rank 2, but another rank sent a tensor of rank 3."),
    "dim 1": (INTERNAL, "with dimension 1 equal to 10, but another rank sent a tensor with dimension 1 equal to 20."),
    "dim 1, alltoall": (INTERNAL, "Mismatched ALLTOALL tensor shapes"),
    "type": (INTERNAL, "Mismatched data types: One rank had type int32, but another rank had type float32."),
    "kind": (INTERNAL, "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER."),
    "factors": (
        INTERNAL,
        "and/or postscale factors: One rank sent factors (1, 1), but another rank sent factors (2, 1).",
    ),
    "op": (INTERNAL, "Mismatched reduction operation: One rank sent reduction op 1"),
    "root": (INTERNAL, "root ranks: One rank specified root rank 0, but another rank specified root rank 1."),
    "scalar allgather": ("Error", "tried to ALLGATHER a rank-zero tensor."),
    "scalar alltoall": ("Error", "tried to ALLTOALL a rank-zero tensor."),
    "scalar reducescatter": (VALUE, "Reducescatter does not support scalar inputs"),
    "reducescatter min": (INTERNAL, "Reducescatter currently only supports AVERAGE and SUM."),
    "reducescatter adasum": (INTERNAL, "Reducescatter currently only supports AVERAGE and SUM."),
    "splits dims": (VALUE, "alltoall expects a 1D splits tensor"),
    "splits type": (VALUE, "alltoall expects splits to contain 32-bit integer elements."),
    "splits sum": (VALUE, "Sum of splits entries is greater than the first dimension of tensor."),
    "splits entries": (VALUE, "Number of entries in splits does not equal number of workers."),
    "no splits": (VALUE, "first dimension of tensor is not an even multiple of the number of workers."),
    "negative splits": (VALUE, "at least 0 rows"),
    "unsupported": (VALUE, "Tensor type torch.ComplexFloatTensor is not supported"),
    "not contiguous": (VALUE, "Tensor is required to be contiguous."),
    "negated": (VALUE, "this tensor is negated lazily"),
    "twice": (VALUE, "grouped allreduce: tensors 0 and 2 share memory that the operation overwrites"),
    "overlapping": (VALUE, "grouped allreduce: tensors 0 and 1 share memory that the operation overwrites"),
    "saved by autograd": ("RuntimeError", "has been modified by an inplace operation"),
    "saved by autograd, broadcast": ("RuntimeError", "has been modified by an inplace operation"),
    **{
        f"no operation{where}": (VALUE, "op='sum' is a string: write op=hvd.Sum, or ringreduce.Sum")
        for where in ("", ", by place", ", reduce", ", reducescatter", ", optimizer")
    },
    "handle": (VALUE, "Handle 17 was not created or has been cleared."),
    "average": (VALUE, "The op parameter supersedes average. Please provide only one of them."),
    "unregistered": (VALUE, "Allreduce: Process set provided does not exist, or has not been registered."),
    "unregistered alltoall": (VALUE, "Alltoall: Process set provided does not exist, or has not been registered."),
}


def raised(call: Callable[[], Any]) -> tuple[list[str], str]:
    """(names of the error's classes, its text)."""
    try:
        result = call()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    return [], f"no error but {result!r}"


def changed_after_use(collective: Callable[[torch.Tensor], Any]) -> None:
    """The gradient of exp() is its result, which the collective overwrites before backward()."""
    result = torch.ones(3, requires_grad=True).exp()
    collective(result)
    result.sum().backward()


def go_wrong() -> dict[str, tuple[list[str], str]]:
    hvd.init()
    r, n = hvd.rank(), hvd.size()
    odd = r == n - 1
    x = torch.ones(17, 17)
    other = torch.ones(18, 18) if odd else x
    wide = torch.ones(4, 20 if odd else 10)
    part = hvd.add_process_set([1])
    unknown = hvd.ProcessSet([0, 1])

    calls: dict[str, Callable[[], Any]] = {
        "no operation": lambda: hvd.allreduce(x, op="sum"),
        "no operation, by place": lambda: hvd.allreduce_async_(x, "sum"),
        "no operation, reduce": lambda: hvd.reduce(x, 0, op="sum"),
        "no operation, reducescatter": lambda: hvd.reducescatter(x, op="sum"),
        "no operation, optimizer": lambda: hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(x)], lr=1.0), op="sum"
        ),
        "shape": lambda: hvd.allreduce(other),
        "shape, async": lambda: hvd.synchronize(hvd.allreduce_async_(other, name="t")),
        "shape, in a graph": lambda: hvd.grouped_allreduce([torch.ones(other.shape, requires_grad=True)]),
        "shape, broadcast": lambda: hvd.broadcast(other, 0),
        "shape, reducescatter": lambda: hvd.reducescatter(other),
        "shape, group": lambda: hvd.grouped_allreduce([x, other]),
        "shape, group of gathers": lambda: hvd.grouped_allgather([x, other], name="g"),
        "dims": lambda: hvd.allgather(torch.ones(2, 2, 2) if odd else torch.ones(2, 2)),
        "dim 1": lambda: hvd.allgather(wide),
        "dim 1, alltoall": lambda: hvd.alltoall(wide),
        "type": lambda: hvd.allreduce(x if odd else x.int()),
        "kind": lambda: hvd.allgather(x, name="k") if odd else hvd.allreduce(x, name="k"),
        "factors": lambda: hvd.allreduce(x, prescale_factor=2.0 if odd else 1.0),
        "op": lambda: hvd.allreduce(x, op=hvd.Min if odd else hvd.Sum),
        "negated": lambda: hvd.allreduce_(torch.complex(x, x).conj().imag.view(-1)[:1]),
        "twice": lambda: hvd.grouped_allreduce_([x, wide, x]),
        "overlapping": lambda: hvd.grouped_allreduce_([x.view(-1)[:9], x.view(-1)[8:17]]),
        "saved by autograd": lambda: changed_after_use(hvd.allreduce_),
        "saved by autograd, broadcast": lambda: changed_after_use(lambda saved: hvd.broadcast_(saved, 0)),
        "root": lambda: hvd.broadcast_(x.clone(), 1 if odd else 0),
        "scalar allgather": lambda: hvd.allgather(torch.tensor(1.0)),
        "scalar alltoall": lambda: hvd.alltoall(torch.tensor(1.0), [1] * n),
        "scalar reducescatter": lambda: hvd.reducescatter(torch.tensor(1.0)),
        "reducescatter min": lambda: hvd.reducescatter(x, op=hvd.Min),
        "reducescatter adasum": lambda: hvd.grouped_reducescatter_async([x], op=hvd.Adasum),
        "splits dims": lambda: hvd.alltoall(x, torch.ones(1, n, dtype=torch.int32)),
        "splits type": lambda: hvd.alltoall(x, torch.ones(n)),
        "splits sum": lambda: hvd.alltoall(x, torch.full((n,), 17, dtype=torch.int32)),
        "splits entries": lambda: hvd.alltoall(x, [1] * (n + 1)),
        "no splits": lambda: hvd.alltoall(x),
        "negative splits": lambda: hvd.alltoall_async(x, [-1] * n),
        "unsupported": lambda: hvd.reducescatter(torch.ones(4, dtype=torch.complex64)),
        "not contiguous": lambda: hvd.broadcast_(torch.ones(4, 4).t()[1:], 0),
        "handle": lambda: hvd.poll(17),
        "average": lambda: hvd.grouped_allreduce_([x], average=False, op=hvd.Sum),
        "unregistered": lambda: hvd.allreduce(x, process_set=unknown),
        "unregistered alltoall": lambda: hvd.alltoall(x, process_set=unknown),
    }
    seen = {what: raised(call) for what, call in calls.items()}

    assert part.included() is odd
    for what, call in {
        "Allreduce": lambda: hvd.allreduce(x, process_set=part),
        "Alltoall": lambda: hvd.alltoall(torch.ones(1), process_set=part),
        "Reducescatter": lambda: hvd.reducescatter(x, process_set=part),
        "Barrier": lambda: hvd.barrier(part),
    }.items():
        if odd:
            call()
        else:
            with pytest.raises(ValueError, match=f"{what}: Rank 0 is not a member of the provided process set"):
                call()

    if odd:
        with pytest.raises(ValueError, match="broadcast received invalid root rank 0 for provided process set"):
            hvd.broadcast(x, 0, process_set=part)

    if r == 0:
        first = hvd.allreduce_async(torch.ones(3), name="twice", op=hvd.Sum)
        again: list[Callable[[], Any]] = [
            lambda: hvd.allreduce(x, name="twice"),
            lambda: hvd.alltoall_async(torch.ones(n), name="twice"),
            lambda: hvd.reducescatter_async(x, name="twice"),
            lambda: hvd.broadcast_async_(x, 0, name="twice"),
        ]
        for call in again:
            kinds, text = raised(call)
            assert "ValueError" in kinds, text
            assert SAME_NAME in text
        hvd.barrier()
        assert first.wait().tolist() == [2.0] * 3
    else:
        hvd.barrier()
        assert hvd.allreduce(torch.ones(3), name="twice", op=hvd.Sum).tolist() == [2.0] * 3

    pending = hvd.alltoall_async(torch.ones(n), name=f"only on rank {r}")
    assert not hvd.poll(pending)
    hvd.shutdown()
    kinds, text = raised(pending.wait)
    assert "ShutdownError" in kinds
    assert SHUT_DOWN in text
    late: list[Callable[[], Any]] = [
        lambda: hvd.alltoall(x),
        lambda: hvd.reducescatter(x),
        lambda: hvd.grouped_allgather([x]),
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), "s", hvd.Sum),
        lambda: hvd.SyncBatchNorm(3)(torch.ones(2, 3)),
        hvd.barrier,
        hvd.join,
        hvd.rank,
    ]
    for call in late:
        kinds, text = raised(call)
        assert {"NotInitializedError", "HorovodInternalError", "ValueError"} <= set(kinds)
        assert "Horovod has not been initialized; use hvd.init()." in text
    return seen


def test_the_error_contract(run_ranks: Callable[..., Any]) -> None:
    for seen in run_ranks(go_wrong, 2):
        assert seen.keys() == TABLE.keys()
        for what, (kind, phrase) in TABLE.items():
            kinds, text = seen[what]
            assert kind in kinds, f"{what}: {kinds} {text}"
            assert phrase in text, f"{what}: {text}"


def lazily_negated() -> None:
    """The imaginary part of a conjugate has the sign in a bit of the tensor, not in its memory."""
    with hvd.init() as world:
        imaginary = torch.complex(torch.ones(3), torch.full((3,), world.rank + 1.0)).conj().imag
        assert imaginary.is_neg()
        dense = torch.empty(3, 2)[:, 0].copy_(imaginary)
        expected = [-sum(rank + 1.0 for rank in range(world.size))] * 3
        for tensor in (imaginary, imaginary.view(-1), dense):
            assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == expected
            assert hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum)).tolist() == expected
            assert hvd.allgather(tensor)[-1].item() == -float(world.size)
            assert hvd.broadcast(tensor, 1).tolist() == [-2.0] * 3


def test_lazily_negated_tensors(run_ranks: Callable[..., Any]) -> None:
    run_ranks(lazily_negated, 2)


def no_tensors() -> None:
    array = np.ones((2, 2), np.float32)
    with hvd.init():
        for bad, kind in ((3.0, "float"), ([1.0], "list"), (array, "ndarray"), (None, "NoneType")):
            wrong = rf"a torch\.Tensor is expected, not {kind}"
            for name in ("allreduce", "allgather", "reducescatter", "alltoall"):
                for form in (name, f"{name}_async"):
                    with pytest.raises(hvd.InvalidArgumentError, match=wrong):
                        getattr(hvd, form)(bad)
                if name != "alltoall":
                    with pytest.raises(hvd.InvalidArgumentError, match=wrong):
                        getattr(hvd, f"grouped_{name}")([bad])
            for call in (hvd.broadcast, hvd.broadcast_, hvd.broadcast_async):
                with pytest.raises(hvd.InvalidArgumentError, match=wrong):
                    call(bad, 0)
        for bad, kind in ((3.0, "float"), (torch.ones(2, 2), "Tensor")):
            for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
                with pytest.raises(hvd.InvalidArgumentError, match=f"a list of torch.Tensors is expected, not {kind}"):
                    call(bad)
        for op in (1.5, torch.sum):
            for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.allreduce_async_):
                with pytest.raises(hvd.InvalidArgumentError, match="is no reduce operation; these are Average, Sum, "):
                    call(torch.ones(2), op=op)


def test_what_is_no_tensor_and_no_operation(run_ranks: Callable[..., Any]) -> None:
    run_ranks(no_tensors, 1)


def transform() -> None:
    ones = torch.ones(2, 3)
    inside = r"inside torch\.func\.vmap or torch\.func\.jvp.*outside of"
    with hvd.init():
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, lambda x: hvd.allreduce_async(x).wait()):
            with pytest.raises(hvd.InvalidArgumentError, match=inside):
                torch.func.vmap(call)(ones)
        with pytest.raises(hvd.InvalidArgumentError, match=inside):
            torch.func.jvp(hvd.allreduce_, (ones,), (ones,))
        with pytest.raises(hvd.UnavailableError, match="this operation would lose the tangent"):
            torch.func.jvp(lambda x: hvd.allreduce_async(x).wait(), (ones,), (ones,))
        assert torch.equal(torch.func.grad(lambda x: hvd.allreduce(x, op=hvd.Sum).sum())(ones), ones)


def test_transforms_of_functions(run_ranks: Callable[..., Any]) -> None:
    run_ranks(transform, 1)


def take_everything() -> list[str]:
    """Every collective of every dtype, of tensors that are empty, without dimensions, strided, shared or in a graph."""
    faults = []
    with hvd.init() as world:
        n, r = world.size, world.rank

        def check(what: str, result: Any, expected: Any) -> None:
            if result.dtype != expected.dtype or not torch.equal(result, expected):
                faults.append(f"{what}: {result} instead of {expected}")

        for name in DTYPES:
            every = [tensor_of(oracle.values(4, rank, 6, name, oracle.MAX)) for rank in range(n)]
            mine = every[r]
            dtype = mine.dtype
            grid = torch.stack([mine, mine]).t()  # (6, 2), strides (1, 6)
            assert not grid.is_contiguous()
            wanted = torch.cat([torch.stack([one, one]).t() for one in every])
            check(f"allgather {name}", hvd.allgather(grid), wanted)
            check(f"broadcast {name}", hvd.broadcast(grid, 1), wanted[6:12])
            check(f"broadcast of a scalar {name}", hvd.broadcast(mine[0], 1), every[1][0])
            kept = mine[1].clone()
            assert hvd.broadcast_(kept, 0) is kept
            check(f"broadcast_ of a scalar {name}", kept, every[0][1])
            column = grid[:, 0]
            check(f"alltoall {name}", hvd.alltoall(column, [2] * n)[0], torch.cat([one[2 * r :][:2] for one in every]))
            largest = hvd.allreduce(mine[2], op=hvd.Max)
            if wrong := oracle.wrong(array_of(largest[None]), [array_of(one[2:3]) for one in every], oracle.MAX):
                faults.append(f"allreduce of a scalar {name}: {wrong}")
            for shape in ((0,), (0, 3), (3, 0)):
                empty = torch.empty(shape, dtype=dtype)
                rows = shape[0] * n
                check(f"allreduce {shape} {name}", hvd.allreduce(empty, op=hvd.Max), empty)
                check(f"allgather {shape} {name}", hvd.allgather(empty), empty.new_empty(rows, *shape[1:]))
                check(f"broadcast {shape} {name}", hvd.broadcast_(empty, 0), empty)
                check(f"alltoall {shape} {name}", hvd.alltoall(empty), empty)
                if name != "bool":
                    cut = empty.new_empty(own_rows(shape[0], r, n), *shape[1:])
                    check(f"reducescatter {shape} {name}", hvd.reducescatter(empty), cut)

        parameter = torch.nn.Parameter(torch.full((3,), r + 1.0))
        assert hvd.allreduce_(parameter, op=hvd.Sum) is parameter
        check("allreduce_ of a parameter", parameter.detach(), torch.full((3,), n * (n + 1) / 2))
        assert parameter.requires_grad
        assert parameter.is_leaf
        in_graph = parameter * 2
        for result in (
            hvd.synchronize(hvd.allreduce_async(in_graph)),
            hvd.synchronize(hvd.alltoall_async(in_graph, [1] * n))[0],
            hvd.synchronize(hvd.reducescatter_async(in_graph)),
        ):
            assert not result.requires_grad
        channels_last = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last)
        check("channels last", hvd.allreduce(channels_last), channels_last)
        batch = torch.ones(2, 3)
        check("an expanded tensor", hvd.allreduce(batch[:1].expand(2, 3) * (r + 1), op=hvd.Max), batch * n)
        check("a tensor that overlaps itself", hvd.allgather(torch.ones(1).expand(4)), torch.ones(4 * n))
        assert hvd.global_process_set.group.algorithm("allreduce", 1 << 40, 0, False)
    return faults


def test_tensors_of_every_kind(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(take_everything, 3) == [[], [], []]


def test_more_elements_than_32_bits_count() -> None:
    count = (1 << 31) + 5
    large = torch.empty(count, dtype=torch.uint8)  # address space only: no page of it is touched
    address, shape, _, owner = operand(large)
    assert (address, tuple(shape)) == (large.data_ptr(), (count,))
    assert owner is large
    assert operand(large[7:])[0] == large.data_ptr() + 7
    rows = [own_rows((1 << 33) + 2, rank, 3) for rank in range(3)]
    assert rows == [2863311532, 2863311531, 2863311531]
    assert sum(rows) == (1 << 33) + 2


def without_a_set() -> list[str]:
    x = torch.ones(2)
    with hvd.init():
        calls: dict[str, Any] = {
            "tracked": partial(hvd.allreduce, x.clone().requires_grad_()),
            "optimizer": partial(hvd.DistributedOptimizer, torch.optim.SGD([x.clone().requires_grad_()], lr=1)),
        }
        for form in ("allreduce", "allreduce_", "allreduce_async", "allgather", "alltoall", "reducescatter"):
            calls[form] = partial(getattr(hvd, form), x)
        for form in ("broadcast", "broadcast_", "gather", "reduce", "send", "recv", "broadcast_object"):
            calls[form] = partial(getattr(hvd, form), x, 0)
        calls["barrier"] = hvd.barrier
        calls["sparse"] = partial(hvd.sparse_allreduce_async, torch.eye(2).to_sparse(), "s", hvd.Sum)
        calls["grouped_allreduce"] = partial(hvd.grouped_allreduce, [x])
        wrong = []
        for form, call in calls.items():
            try:
                wrong.append(f"{form}: {call(process_set=[0])}")
            except Exception as error:
                if not (isinstance(error, hvd.InvalidArgumentError) and "process_set=[0] is no Proc" in str(error)):
                    wrong.append(f"{form}: {error!r}")
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2, form  # the job goes on
    return wrong


def test_what_is_no_process_set_is_an_error_that_says_so(run_ranks: Callable[..., Any]) -> None:
    assert run_ranks(without_a_set, 2) == [[], []]
