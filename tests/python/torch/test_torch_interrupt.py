"""Ctrl-C in a call of torch's API that submits many operations: nothing goes on with the tensors behind its back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
from interrupts import check_interrupted_submission, interrupted_while_submitting
from ranks import start_ranks

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch import functions  # noqa: E402


def broadcast(tensors: list[Any]) -> list[Any]:
    with mock.patch.object(functions, "check_number"):  # in which rank 0 would wait, before it submits the others
        hvd.broadcast_parameters(tensors, 1)
    return tensors


CALLS: dict[str, Callable[[list[Any]], Sequence[Any]]] = {
    "allgather": hvd.grouped_allgather,
    "reducescatter": lambda tensors: hvd.grouped_reducescatter(tensors, op=hvd.Sum),
    "broadcast_parameters": broadcast,
}


def blocked_in_submission(what: str) -> tuple[str, list[float]]:
    nelems = 1 << 15 if what == "broadcast_parameters" else 400  # of a small one the root gives a copy, and it stands
    return interrupted_while_submitting(CALLS[what], lambda value: torch.full((nelems,), value, dtype=torch.float32))


@pytest.mark.parametrize("what", CALLS)
def test_ctrl_c_while_a_grouped_call_submits(what: str) -> None:
    with start_ranks(blocked_in_submission, 2, args=(what,)) as job:
        check_interrupted_submission(job, 2.0 if what == "reducescatter" else 1.0)
