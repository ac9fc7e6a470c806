"""Python objects from one rank to all, or from all to all: pickled, for set-up and bookkeeping, not for arrays.

As with any pickle, only for ranks that trust each other; those of one job do.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from ringreduce import state
from ringreduce.job.process_sets import ProcessSet, global_process_set, group_of


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The root's object, on every rank; on the root the object itself.

    Args:
        obj: matters on the root only.
        root_rank: global rank whose object it is.
        name: identifies the operation; None uses the order of calls.
    """
    state.finish_in_flight()
    group = group_of(process_set)
    submit = group.broadcast_async
    root = process_set.position(root_rank, "broadcast")
    is_root = group.rank == root
    content = np.frombuffer(dumps(obj) if is_root else b"", np.uint8)
    nbytes = np.array([content.size], np.int64)
    submit(nbytes, root, None if name is None else f"{name}.sz").wait()
    content = content.copy() if is_root else np.empty(int(nbytes[0]), np.uint8)
    submit(content, root, None if name is None else f"{name}.t").wait()
    return obj if is_root else pickle.loads(content.data)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Every rank's object, in rank order, on every rank.

    Args:
        obj: any size; may differ in type between ranks.
        name: identifies the operation; None uses the order of calls.
    """
    state.finish_in_flight()
    work = group_of(process_set).allgather_async(np.frombuffer(dumps(obj), np.uint8), name)
    work.wait()
    content, objects, start = memoryview(work.output or b""), [], 0
    for nbytes in work.counts:
        objects.append(pickle.loads(content[start : start + nbytes]))
        start += nbytes
    return objects


def cloudpickle() -> Any:
    """The module, which pickles lambdas and local classes too; None where it is not installed."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return None
    return cloudpickle


def dumps(obj: Any) -> bytes:
    """pickle.dumps, and with cloudpickle, where that is installed, also lambdas and local classes."""
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        helper = cloudpickle()
        if helper is None:
            raise
    content: bytes = helper.dumps(obj)
    return content
