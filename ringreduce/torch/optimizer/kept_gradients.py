"""Optimizers that keep a gradient as it is (`state["previous"] = parameter.grad`) until the next step.

With gradient_as_bucket_view=True the next gradient is written to the same memory, and the previous one would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

LOOKS = 2
"""So many first steps are looked at: an optimizer may keep nothing before its second."""


def find(state: Any, stretches: Sequence[torch.Tensor]) -> Iterator[tuple[Any, Any, Any, Any]]:
    """The tensors of an optimizer's state that lie in one of some stretches of memory.

    Yields: the parameter, the key of its state, and the dict or list that has the tensor, with its key or index there.
    """
    spans = [(whole.data_ptr(), whole.data_ptr() + whole.nbytes) for whole in stretches]
    for parameter, its in list(state.items()):
        if isinstance(its, dict):
            for key in list(its):
                for holder, at in _tensors(its, key):
                    address = holder[at].data_ptr() if holder[at].layout is torch.strided else 0
                    if any(first <= address < end for first, end in spans):
                        yield parameter, key, holder, at


def _tensors(holder: Any, at: Any) -> Iterator[tuple[Any, Any]]:
    value = holder[at]
    if isinstance(value, torch.Tensor):
        yield holder, at
    elif isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield from _tensors(value, key)
