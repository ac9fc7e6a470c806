"""The collectives as operators of torch.library, `torch.ops.ringreduce.*`: what torch.compile and torch.export see.

An operator is a function of autograd.py with a schema, with a rule for the shape of its result, and with that
function's gradient. Arguments are those of autograd.py: names are strings, an operation is its number, a process set is
its id. All of them are functional; in place, a traced hvd.allreduce_(x) is x.copy_(allreduce(x)), because torch keeps
only functional operators in order (below) and takes the copy away where it can.

Order. Every operator that communicates is registered as a side effect of one ordered kind where torch has that
(2.10 or so; ORDERED says whether): a token goes from each to the next, in the forward graph and in the backward
graph, so that no pass of the compiler drops one (also when its result is used on some ranks only, whose graphs
differ), doubles one or moves one across another. Where torch does not have it (2.4 to 2.9), they are registered as
functions with side effects: they are not dropped, and keep their order with the backends eager and aot_eager.

Loading this costs no import of torch._dynamo, and nothing here is called by Python code that is not being traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ringreduce.torch import autograd
from ringreduce.torch.members import Members, process_set_of
from ringreduce.torch.tracing import KERNEL, TRACEABLE, untraced

_torch_library: Any = torch.library  # which has no types

ORDERED = hasattr(torch.library, "EffectType") and hasattr(torch.library, "_register_effectful_op")
"""Whether torch keeps the collectives of a graph in order by itself, whatever the backend."""

REDUCTION = "str? name, int op, float prescale_factor, float postscale_factor, int process_set"


def _contiguous_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _rows(tensor: torch.Tensor, rows: Any) -> torch.Tensor:
    return tensor.new_empty((rows, *tensor.shape[1:]))


def _unknown_rows(tensor: torch.Tensor) -> torch.Tensor:
    return _rows(tensor, torch.library.get_ctx().new_dynamic_size())


def _counts(members: Members, *operations: int) -> torch.Tensor:
    return torch.empty((*operations, process_set_of(members).group.size), dtype=torch.int64)


def _fake_allgather(
    tensors: Sequence[torch.Tensor], name: str | None, rows: Sequence[int] | None, members: Members
) -> tuple[list[torch.Tensor], torch.Tensor]:
    known = rows if rows is not None else [None] * len(tensors)
    outputs = [
        _unknown_rows(tensor) if n is None else _rows(tensor, n) for tensor, n in zip(tensors, known, strict=True)
    ]
    return outputs, _counts(members, len(tensors))


def _fake_reducescatter(tensors: Sequence[torch.Tensor], *settings: Any) -> list[torch.Tensor]:
    group = process_set_of(settings[-1]).group
    return [_rows(tensor, (tensor.shape[0] + group.size - 1 - group.rank) // group.size) for tensor in tensors]


def _grouped_allgather(tensors: Sequence[torch.Tensor], *settings: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    *outputs, counts = autograd.GroupedAllgather.forward(*settings, *tensors)
    return outputs, counts


def _grouped_allreduce(tensors: Sequence[torch.Tensor], *settings: Any) -> list[torch.Tensor]:
    return list(autograd.GroupedAllreduce.forward(*settings, *tensors))


def _grouped_reducescatter(tensors: Sequence[torch.Tensor], *settings: Any) -> list[torch.Tensor]:
    return list(autograd.GroupedReducescatter.forward(*settings, *tensors))


def _own_rows(gathered: Sequence[torch.Tensor], counts: torch.Tensor, rows: Sequence[int], members: Members) -> Any:
    taken = autograd.own_rows(gathered, counts, rows, process_set_of(members))
    return [tensor.clone() for tensor in taken]  # an operator's result is memory of its own


def _sent_back(grad: torch.Tensor, counts: torch.Tensor, rows: int, members: Members) -> torch.Tensor:
    return autograd.sent_back(grad, counts, rows, process_set_of(members))


def _barrier(name: str | None, members: Members) -> None:
    process_set_of(members).group.barrier(name)


def _flat(output: Any) -> tuple[torch.Tensor, ...]:
    """The outputs of an operator on lists, as its function has them."""
    return tuple(output) if isinstance(output, list) else (*output[0], *output[1:])


def _gradient(function: type[torch.autograd.Function], grouped: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The function's backward() and setup_context(), as an operator takes them."""
    if not grouped:
        return function.backward, function.setup_context

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, *settings = inputs
        function.setup_context(ctx, (*settings, *tensors), _flat(output))

    def backward(ctx: Any, grads: Sequence[torch.Tensor], *others: torch.Tensor) -> tuple[Any, ...]:
        results = function.backward(ctx, *grads, *others)
        settings = len(results) - len(grads)
        return list(results[settings:]), *results[:settings]

    return backward, setup_context


def _define(
    library: Any,
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    function: type[torch.autograd.Function] | None = None,
    communicates: bool = True,
) -> None:
    name = schema.split("(")[0]
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, untraced(KERNEL)(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ringreduce::{name}", fake, lib=library)
    if function is not None:
        backward, setup_context = _gradient(function, grouped="Tensor[] tensors" in schema)
        torch.library.register_autograd(f"ringreduce::{name}", backward, setup_context=setup_context, lib=library)
    if communicates:
        operator = getattr(torch.ops.ringreduce, name).default
        torch.fx.node.has_side_effect(operator)
        if ORDERED:
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
        "grouped_allgather(Tensor[] tensors, str? name, SymInt[]? rows, int process_set) -> (Tensor[], Tensor)",
        _grouped_allgather,
        _fake_allgather,
        autograd.GroupedAllgather,
    )
    define(
        "own_rows(Tensor[] gathered, Tensor counts, SymInt[] rows, int process_set) -> Tensor[]",
        _own_rows,
        lambda gathered, counts, rows, _: [_rows(tensor, n) for tensor, n in zip(gathered, rows, strict=True)],
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
        autograd.Alltoall.forward,
        lambda tensor, *settings: (_unknown_rows(tensor), _counts(settings[-1])),
        autograd.Alltoall,
    )
    define(
        "sent_back(Tensor grad, Tensor counts, SymInt rows, int process_set) -> Tensor",
        _sent_back,
        lambda grad, counts, rows, _: _rows(grad, rows),
    )
    define(
        f"grouped_reducescatter(Tensor[] tensors, {REDUCTION}) -> Tensor[]",
        _grouped_reducescatter,
        _fake_reducescatter,
        autograd.GroupedReducescatter,
    )
    define("barrier(str? name, int process_set) -> ()", _barrier, lambda *_: None)
    return library


LIBRARY = _defined() if TRACEABLE else None
"""Keeps the operators registered."""
