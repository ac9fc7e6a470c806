"""What a training script calls once, so that all ranks start from the same place: parameters and optimizer state."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any, TypeAlias

import torch

from ringreduce.collectives import objects
from ringreduce.collectives.handles import Submitted, Works, wait_or_withdraw
from ringreduce.common.same_start import check_number
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.collective_json import allgather_json
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of
from ringreduce.torch.profiling import profiled, ranged
from ringreduce.torch.tensors import in_place, lacks_memory, no_memory, on_stream, refusal, shares_elements, source
from ringreduce.torch.tracing import BLOCKS, untraced

Named: TypeAlias = tuple[str | None, torch.Tensor]

allgather_object, broadcast_object = (
    untraced(BLOCKS)(ranged("allgather_object")(objects.allgather_object)),
    untraced(BLOCKS)(ranged("broadcast_object")(objects.broadcast_object)),
)


@untraced(BLOCKS)
def broadcast_parameters(
    params: dict[str, torch.Tensor] | list[torch.Tensor] | list[tuple[str, torch.Tensor]] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites the tensors with the root's. Every rank of the process set calls it, also where there are no tensors.

    Args:
        params: model.state_dict(), a dict of tensors, or a list of tensors or of (name, tensor) pairs.
        root_rank: global rank whose values are right.

    Raises:
        InvalidArgumentError: params is something else, or has an entry that is no tensor, such as what a module's
            get_extra_state() returns, or a sparse tensor, or one without memory of its own, such as a DTensor, or one
            whose elements share memory, as after expand().
        MismatchError: the ranks give other numbers of tensors: none is overwritten.
    """
    named: list[Named]
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [p if isinstance(p, tuple) else (None, p) for p in params]
    else:
        raise InvalidArgumentError(
            f"invalid params of type: {type(params)}; pass model.state_dict() or list(model.parameters())"
        )
    for index, (name, tensor) in enumerate(named):  # all before the first goes: ranks with like models refuse alike
        what = f"entry {index}" if name is None else repr(name)
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: {what} is no tensor, but a value of type {type(tensor).__name__}; leave it "
                "out, send it by broadcast_object(), and give the result to model.load_state_dict()"
            )
        if tensor.layout is not torch.strided:
            raise InvalidArgumentError(f"broadcast_parameters: {what}: {refusal(tensor)}")
        if lacks_memory(tensor):
            raise no_memory(tensor)
        if shares_elements(tensor):
            raise InvalidArgumentError(
                f"broadcast_parameters: {what} has elements that share memory (expand()), so that the root's values "
                "cannot be written to it: make it a tensor of its own, by clone(), on all ranks"
            )
    check_number("broadcast_parameters", len(named), root_rank, process_set)
    submit = profiled(group_of(process_set)).broadcast_async
    root = process_set.position(root_rank, "broadcast")
    memories = [tensor if tensor.is_contiguous() else source(tensor) for _, tensor in named]
    calls = [
        (in_place(memory), root, None if name is None else f"broadcast.{name}")
        for memory, (name, _) in zip(memories, named, strict=True)
    ]
    with Submitted(submit, calls) as works:
        wait_or_withdraw(Works([on_stream(work, memory) for work, memory in zip(works, memories, strict=True)]))
    for memory, (_, tensor) in zip(memories, named, strict=True):
        if memory is not tensor:
            tensor.detach().copy_(memory)


@untraced(BLOCKS)
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Gives the optimizer the root's state and options (learning rate, momentum buffers, step counts, ...).

    The other ranks need no state of their own, so that only the root has to load a checkpoint. Parameters without a
    gradient get one of zeros where the optimizer has no state yet, as Horovod leaves them; no step is taken for that.

    Args:
        optimizer: the same parameters in the same order on all ranks; wrapped by DistributedOptimizer or not.
        root_rank: global rank whose state is right.
        model: says which parameters get sparse gradients: those of torch.nn.Embedding(sparse=True).

    With shard_step=True a state that the ranks keep in shards stays where it is, and the options are broadcast.

    Raises:
        InvalidArgumentError: an LBFGS optimizer, or the number of parameters differs from the root's; or the root's
            state is in shards, and another rank has loaded one, or it has a tensor without memory of its own, such as
            a DTensor, or in another layout than strided and sparse COO, or something that cannot be pickled (on all
            ranks). Lambdas and local classes need cloudpickle.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgumentError("cannot broadcast torch.optim.LBFGS state")
    is_in_shards = _is_in_shards(optimizer, root_rank, process_set)
    if not optimizer.state and not is_in_shards:
        _give_zeros(optimizer, model)
    is_root = group_of(process_set).rank == process_set.position(root_rank, "broadcast")
    tensors: list[torch.Tensor] = []
    skeleton, refused = b"", None
    if is_root:
        state = _plain_state(optimizer, is_in_shards)
        try:
            skeleton = _without_tensors(state, tensors)
        except Exception as error:  # of any kind, as objects pickle themselves: the other ranks wait for what is said
            refused = (
                f"the state or the options of the root, rank {root_rank}, cannot be pickled "
                f"({type(error).__name__}: {error}); {_cure()}"
            )
        else:
            refusals = (str(refusal(tensor)) for tensor in tensors if _has_no_way(tensor))
            refused = next((f"of the root's state, {text}" for text in refusals), None)
    # With strides: a fused optimizer goes through a parameter, its gradient and its state as they lie in memory.
    layout = [
        (tuple(tensor.shape), torch.empty_like(tensor, device="meta").stride(), tensor.dtype, tensor.is_cuda)
        for tensor in (() if refused else tensors)
    ]
    skeleton, layout, refused = broadcast_object((skeleton, layout, refused), root_rank, process_set=process_set)
    if refused:
        raise InvalidArgumentError(f"broadcast_optimizer_state: {refused}")
    if layout and not tensors:
        gpu = _gpu_of(optimizer) if any(is_cuda for *_, is_cuda in layout) else None
        tensors = [
            torch.empty_strided(shape, strides, dtype=dtype, device=gpu if is_cuda else "cpu")
            for shape, strides, dtype, is_cuda in layout
        ]
    sent = [tensor.contiguous() if shares_elements(tensor) else tensor for tensor in tensors]  # of the root alone
    broadcast_parameters(sent, root_rank, process_set)
    if not is_root:
        if not is_in_shards:
            getattr(optimizer, "state_of_shards", {}).clear()
        _adopt(optimizer, _with_tensors(skeleton, tensors))


def _plain_state(optimizer: torch.optim.Optimizer, is_in_shards: bool) -> dict[str, Any]:
    """What the plain class calls its state, for which the root asks no other rank.

    Where the state is in shards it has the options alone. That of LocalSGD would wait for an averaging, and hold what
    the other ranks throw away.
    """
    plain = torch.optim.Optimizer if is_in_shards else getattr(type(optimizer), "_plain", None)
    state: dict[str, Any] = optimizer.state_dict() if plain is None else plain.state_dict(optimizer)
    return state


def _cure() -> str:
    """What to do about options that cannot be pickled."""
    out = "take it out of them before the call, and put it back on every rank"
    return out if objects.cloudpickle() else f"install cloudpickle on all hosts, which takes lambdas too, or {out}"


def _has_no_way(tensor: torch.Tensor) -> bool:
    """Whether only the root can see that a tensor of its state cannot be sent."""
    return tensor.layout is not torch.strided or not (tensor.is_cpu or tensor.is_cuda) or lacks_memory(tensor)


def _is_in_shards(optimizer: torch.optim.Optimizer, root_rank: int, process_set: ProcessSet) -> bool:
    """Whether the root's state lies in the shards of all ranks (shard_step=True). Collective with such an optimizer.

    Raises InvalidArgumentError, on all ranks, where another rank no longer has its shard.
    """
    shards = getattr(optimizer, "state_of_shards", None)
    if shards is None:
        return False
    mine = any(shards.values()) and not optimizer.unsharded_buckets()  # type: ignore[attr-defined]
    ranks = allgather_json(group_of(process_set), "broadcast_optimizer_state", mine)
    is_in_shards: bool = ranks[process_set.position(root_rank, "broadcast")]
    if is_in_shards and not all(ranks):
        without = [rank for rank, has in zip(process_set.ranks, ranks, strict=True) if not has]
        raise InvalidArgumentError(
            f"broadcast_optimizer_state: with shard_step=True the state of the root, rank {root_rank}, is in the "
            f"shards of all ranks since its last step(), and ranks {without} have loaded another one, or none: call "
            "load_state_dict() on the root too"
        )
    return is_in_shards


def _give_zeros(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Gives parameters without a gradient one of zeros: a sparse one where a sparse one is to be added to it."""
    embeddings = (module for module in (model.modules() if model else ()) if isinstance(module, torch.nn.Embedding))
    sparse = {id(module.weight) for module in embeddings if module.sparse}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                zeros = torch.zeros_like(parameter)
                is_sparse = id(parameter) in sparse or isinstance(optimizer, torch.optim.SparseAdam)
                parameter.grad = zeros.to_sparse(1) if is_sparse else zeros


def _gpu_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Where this rank's copies of the root's CUDA state go. Raises InvalidArgumentError where it has no such memory."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.is_cuda:
                device: torch.device = parameter.device
                return device
    raise InvalidArgumentError(
        "broadcast_optimizer_state: the root's optimizer state is on a GPU, and this rank's parameters are not; move "
        "the model before, on all ranks"
    )


def _adopt(optimizer: torch.optim.Optimizer, received: dict[str, Any]) -> None:
    """Takes over a state_dict() in place, so that whoever shares the parameter groups (a scheduler) sees it too."""
    ours, theirs = optimizer.param_groups, received["param_groups"]
    if [len(group["params"]) for group in ours] != [len(group["params"]) for group in theirs]:
        raise InvalidArgumentError("broadcast_optimizer_state: this rank's parameter groups differ from the root's")
    optimizer.state.clear()
    state = received["state"]
    for group, root_group in zip(ours, theirs, strict=True):
        group.update((key, value) for key, value in root_group.items() if key != "params")
        for parameter, index in zip(group["params"], root_group["params"], strict=True):
            if index in state:
                optimizer.state[parameter] = state.pop(index)
    optimizer.state.update(state)  # what belongs to no parameter


def _without_tensors(obj: Any, tensors: list[torch.Tensor]) -> bytes:
    """Pickles obj with its tensors left out; these are appended to `tensors` in the order of their absence.

    A sparse COO tensor is two of them, indices and values. As in objects.dumps(), cloudpickle helps where it is
    installed.
    """
    try:
        return _pickled(obj, tensors, pickle.Pickler)
    except (pickle.PicklingError, AttributeError, TypeError):
        helper = objects.cloudpickle()
        if helper is None:
            raise
    tensors.clear()
    return _pickled(obj, tensors, helper.Pickler)


def _pickled(obj: Any, tensors: list[torch.Tensor], base: Any) -> bytes:
    class Pickler(base):  # type: ignore[misc]
        def persistent_id(self, item: Any) -> tuple[Any, ...] | None:
            if not isinstance(item, torch.Tensor):
                return None
            at = len(tensors)
            if item.layout is torch.sparse_coo:
                tensors.extend((item._indices(), item._values()))
                return at, tuple(item.shape), item.is_coalesced()
            tensors.append(item)
            return (at,)

    stream = io.BytesIO()
    Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(obj)
    return stream.getvalue()


def _with_tensors(content: bytes, tensors: list[torch.Tensor]) -> Any:
    class Unpickler(pickle.Unpickler):
        def persistent_load(self, told: tuple[Any, ...]) -> torch.Tensor:
            at: int = told[0]
            if len(told) == 1:
                return tensors[at]
            shape, is_coalesced = told[1:]
            values = tensors[at + 1]
            made: torch.Tensor = torch.sparse_coo_tensor(
                tensors[at], values, shape, device=values.device, check_invariants=False
            )
            return made._coalesced_(is_coalesced)

    return Unpickler(io.BytesIO(content)).load()
