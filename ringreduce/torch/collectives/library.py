"""The collectives as operators of torch.library, `torch.ops.ringreduce.*`: what torch.compile and torch.export see.

An operator is a function of autograd.py with a schema, with a rule for the shape of its result, and with that
function's gradient. Arguments are those of autograd.py: names are strings, an operation is its number, a process set is
its place. All of them are functional; in place, a traced hvd.allreduce_(x) is x.copy_(allreduce(x)), because torch
knows no order of operators that overwrite their arguments.

Order. Every operator that communicates is marked as having side effects, so that no pass drops one, also when its
result is used on some ranks only. Graphs run in the order of the program with the backends eager and aot_eager, and
where torch has ordered effects (ORDERED) a token goes from each operator to the next, forward and backward. Inductor
moves operators nevertheless (torch 2.13, to save memory): the same way on all ranks when their graphs and shapes are
the same. docs/user/torch-compile.md says what to set where they are not.

Loading this does not import torch._dynamo, and nothing here is called by Python code that is not being traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.collectives import autograd
from ringreduce.torch.collectives.members import Members, process_set_of
from ringreduce.torch.profiling import profiled
from ringreduce.torch.tracing import KERNEL, TRACEABLE, untraced

_torch_library: Any = torch.library  # which has no types

ORDERED = hasattr(torch.library, "EffectType") and hasattr(torch.library, "_register_effectful_op")
"""Whether this torch has ordered effects."""

TENSORS_LAST = (autograd.GroupedAllreduce, autograd.GroupedAllgather, autograd.GroupedReducescatter)

REDUCTION = "str? name, int op, float prescale_factor, float postscale_factor, int process_set"


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _rows(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _unknown_rows(tensor: torch.Tensor) -> torch.Tensor:
    return _rows(tensor, torch.library.get_ctx().new_dynamic_size())


def _counts(members: Members, *operations: int) -> torch.Tensor:
    return torch.empty((*operations, process_set_of(members).group.size), dtype=torch.int64, device="cpu")


def _fake_allgather(
    tensor: torch.Tensor, name: str | None, rows: int | None, members: Members
) -> tuple[torch.Tensor, torch.Tensor]:
    return _unknown_rows(tensor) if rows is None else _rows(tensor, rows), _counts(members, 1)


def _fake_reducescatter(tensor: torch.Tensor, *settings: Any) -> torch.Tensor:
    group = process_set_of(settings[-1]).group
    return _rows(tensor, (tensor.shape[0] + group.size - 1 - group.rank) // group.size)


def _allgather(tensor: torch.Tensor, *settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    output, counts = autograd.GroupedAllgather.forward(*settings, tensor)
    return output, counts


def _reducescatter(tensor: torch.Tensor, *settings: Any) -> torch.Tensor:
    return autograd.GroupedReducescatter.forward(*settings, tensor)[0]


def _grouped_allreduce(tensors: Sequence[torch.Tensor], *settings: Any) -> list[torch.Tensor]:
    return list(autograd.GroupedAllreduce.forward(*settings, *tensors))


def _own_rows(gathered: torch.Tensor, counts: torch.Tensor, rows: int, members: Members) -> torch.Tensor:
    (taken,) = autograd.own_rows([gathered], counts[None], [rows], process_set_of(members))
    return taken.clone()  # an operator's result is memory of its own


def _alltoall(
    tensor: torch.Tensor, splits: torch.Tensor | None, name: str | None, members: Members
) -> tuple[torch.Tensor, torch.Tensor]:
    output, counts = autograd.Alltoall.forward(tensor, splits, name, members)
    most = max(counts.tolist())
    if splits is not None and most > torch.iinfo(torch.int32).max:
        raise InvalidArgumentError(
            f"alltoall: {most} rows have come from one rank. Graphs have received_splits of int32, which do not hold "
            "that number: call alltoall without torch.compile"
        )
    return output, counts


def _sent_back(grad: torch.Tensor, counts: torch.Tensor, rows: int, members: Members) -> torch.Tensor:
    return autograd.sent_back(grad, counts, rows, process_set_of(members))


def _barrier(name: str | None, members: Members) -> None:
    profiled(process_set_of(members).group).barrier(name)


def _gradient(function: type[torch.autograd.Function]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """backward() and setup_context() of a function of (*settings, *tensors), for one of (tensors, *settings)."""

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, *settings = inputs
        single = isinstance(tensors, torch.Tensor)
        outputs = (output,) if isinstance(output, torch.Tensor) else tuple(output)
        function.setup_context(ctx, (*settings, *((tensors,) if single else tensors)), outputs)

    def backward(ctx: Any, grads: torch.Tensor | Sequence[torch.Tensor], *others: torch.Tensor) -> tuple[Any, ...]:
        single = isinstance(grads, torch.Tensor)
        results = function.backward(ctx, *((grads,) if single else grads), *others)
        count = 1 if single else len(grads)
        tensors, settings = results[-count:], results[:-count]
        return tensors[0] if single else list(tensors), *settings

    return backward, setup_context


def _define(
    library: Any,
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    function: type[torch.autograd.Function] | None = None,
    communicates: bool = True,
    token: bool = True,
) -> None:
    name = schema.split("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, untraced(KERNEL)(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ringreduce::{name}", fake, lib=library)
    if function is not None:
        grouped = issubclass(function, TENSORS_LAST)
        backward, setup_context = _gradient(function) if grouped else (function.backward, function.setup_context)
        torch.library.register_autograd(f"ringreduce::{name}", backward, setup_context=setup_context, lib=library)
    if communicates:
        operator = getattr(torch.ops.ringreduce, name).default
        torch.fx.node.has_side_effect(operator)
        if ORDERED and token:
            _torch_library._register_effectful_op(operator, _torch_library.EffectType.ORDERED, lib=library)


def _defined() -> Any:
    library = _torch_library.Library("ringreduce", "DEF")

    def define(*arguments: Any, **options: Any) -> None:
        _define(library, *arguments, **options)

    define(
        f"allreduce(Tensor tensor, {REDUCTION}) -> Tensor",
        autograd.Allreduce.forward,
        lambda tensor, *_: _contiguous_like(tensor),
        autograd.Allreduce,
    )
    define(
        f"grouped_allreduce(Tensor[] tensors, {REDUCTION}) -> Tensor[]",
        _grouped_allreduce,
        lambda tensors, *_: [_contiguous_like(tensor) for tensor in tensors],
        autograd.GroupedAllreduce,
    )
    define(
        "allgather(Tensor tensor, str? name, SymInt? rows, int process_set) -> (Tensor, Tensor)",
        _allgather,
        _fake_allgather,
        autograd.GroupedAllgather,
        token=False,  # inductor does not take tokens beside rows that are not known
    )
    define(
        "own_rows(Tensor gathered, Tensor counts, SymInt rows, int process_set) -> Tensor",
        _own_rows,
        lambda gathered, counts, rows, _: _rows(gathered, rows),
        communicates=False,
    )
    define(
        "broadcast(Tensor tensor, int root_rank, str? name, int process_set) -> Tensor",
        autograd.Broadcast.forward,
        lambda tensor, *_: _contiguous_like(tensor),
        autograd.Broadcast,
    )
    define(
        "alltoall(Tensor tensor, Tensor? splits, str? name, int process_set) -> (Tensor, Tensor)",
        _alltoall,
        lambda tensor, *settings: (_unknown_rows(tensor), _counts(settings[-1])),
        autograd.Alltoall,
        token=False,
    )
    define(
        "sent_back(Tensor grad, Tensor counts, SymInt rows, int process_set) -> Tensor",
        _sent_back,
        lambda grad, counts, rows, _: _rows(grad, rows),
    )
    define(
        f"reducescatter(Tensor tensor, {REDUCTION}) -> Tensor",
        _reducescatter,
        _fake_reducescatter,
        autograd.GroupedReducescatter,
    )
    define("barrier(str? name, int process_set) -> ()", _barrier, lambda *_: None)
    return library


LIBRARY = _defined() if TRACEABLE else None
"""Keeps the operators registered."""
