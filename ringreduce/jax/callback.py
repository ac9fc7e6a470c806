"""The collectives as Python callbacks of compiled code, for a JAX whose FFI is of no use (versions.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from ringreduce import state
from ringreduce.collectives.buffers import native
from ringreduce.errors import Error, InvalidArgumentError
from ringreduce.jax.call import Call
from ringreduce.job.process_sets import ProcessSet, global_process_set


def run(call: Call, results: Sequence[Any], operands: Sequence[Any]) -> Any:
    """In a program that is being traced: the callback that does it, after all ordered ones before it."""
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in results]

    def perform(*arrays: Any) -> list[np.ndarray[Any, Any]]:
        outputs = [np.empty(shape.shape, shape.dtype) for shape in shapes]
        inputs = [np.ascontiguousarray(array).reshape(np.shape(array)) for array in arrays]
        try:
            _perform(call, inputs, outputs)
        except Error as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error  # XLA's text has no modules of classes
        return outputs

    return io_callback(perform, shapes, *operands, ordered=True)


def _perform(call: Call, inputs: list[Any], outputs: list[Any]) -> None:
    process_set = _process_set(call.process_set)
    group = process_set.group
    sources, targets = [native(array) for array in inputs], [native(array) for array in outputs]
    scaling = call.op, call.prescale, call.postscale
    if call.kind == "barrier":
        group.barrier(call.name)
        outputs[0][()] = 0
    elif call.kind == "allreduce":
        group.allreduce_async(sources, targets, *scaling, call.name).wait()
    elif call.kind == "reducescatter":
        group.reducescatter_async(sources[0], targets[0], *scaling, call.name).wait()
    elif call.kind == "reduce":
        root = process_set.position(call.root, "reduce")
        for source, target, output in zip(sources, targets, outputs, strict=True):
            output[...] = 0
            group.reduce_async(source, target, *scaling, root, call.name).wait()
    elif call.kind == "broadcast":
        root = process_set.position(call.root, "broadcast")
        for array, target, output in zip(inputs, targets, outputs, strict=True):
            output[...] = array
            group.broadcast_async(target, root, call.name).wait()
    elif call.kind == "allgather":
        _take(group.allgather_async(sources[0], call.name), outputs[0], call.received)
    else:
        _take(group.alltoall_async(sources[0], list(call.splits) or None, call.name), outputs[0], call.received)


def _take(work: Any, output: Any, received: tuple[int, ...]) -> None:
    work.wait()
    content = np.frombuffer(work.output or b"", np.uint8)
    if content.size != output.nbytes or (received and tuple(work.counts) != received):
        raise InvalidArgumentError(
            f"the ranks sent {work.counts} rows, {content.size} bytes, where the compiled program has {output.nbytes}: "
            "within jit the first dimension must be the same on all ranks"
        )
    output.reshape(-1).view(np.uint8)[...] = content


def _process_set(process_set: int) -> ProcessSet:
    job = state.require()
    if process_set == 0:
        return global_process_set
    if process_set not in job.process_sets:
        raise InvalidArgumentError("Process set provided does not exist, or has not been registered.")
    return job.process_sets[process_set]
