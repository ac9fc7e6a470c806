"""What the collectives of a process group have in common; group.py puts them together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from ringreduce.errors import InvalidArgumentError
from ringreduce.torch.distributed import futures
from ringreduce.torch.distributed.layout import checked, contiguous
from ringreduce.torch.distributed.work import Completer, Several, Work, seconds

if TYPE_CHECKING:
    from ringreduce.torch.distributed.membership import Membership
    from ringreduce.torch.distributed.work import Native


class Collectives:
    """The state that the collectives share. Every rank of the group makes the same calls in the same order."""

    _member: Membership
    _completer: Completer
    _program: futures.Calls
    _rank: int
    _size: int
    _coalescing: threading.local
    """`works`: those that this thread has made since _start_coalescing(); None outside."""

    def _start_coalescing(self, device: torch.device) -> None:
        """What dist._coalescing_manager(device=...) begins with: works are noted, and go on as they are."""
        self._coalescing.works = []

    def _end_coalescing(self, device: torch.device) -> Work:
        """What it ends with: one work for those since then. torch drops those of the collectives that it has merged."""
        works: list[Work] = getattr(self._coalescing, "works", None) or []
        self._coalescing.works = None
        return self._all_of(works, [tensor for work in works for tensor in work.result()])

    def _noted(self, work: Work) -> Work:
        """The work; _end_coalescing() has it too."""
        works: list[Work] | None = getattr(self._coalescing, "works", None)
        if works is not None:
            works.append(work)
        return work

    def _work(self, native: Native, result: Sequence[torch.Tensor], opts: Any = None, finish: Any = None) -> Work:
        """The work of an operation that was submitted just now."""
        return self._noted(Work(native, result, finish, self._completer, _limit_s(opts), not is_async(opts)))

    def _name_of_call(self) -> str | None:
        """The name of a collective of the core, for which it is called once, by every rank of the group."""
        return futures.call_name(self._program)

    def _one(self, tensors: Any, what: str) -> torch.Tensor:
        """The only tensor of a list: torch passes lists for the sake of several devices."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if len(tensors) != 1:
            raise InvalidArgumentError(f"{what} takes one tensor, not {len(tensors)}")
        return checked(tensors[0])

    def _all_of(self, works: Sequence[Work], result: Sequence[torch.Tensor]) -> Work:
        """One work for several that were submitted one after the other."""
        if len(works) == 1:
            return works[0]
        is_sync = all(work.is_sync for work in works)
        return Work(Several(works), result, None, self._completer, is_sync=is_sync)

    def _check_root(self, root: int, what: str) -> int:
        if not 0 <= root < self._size:
            raise InvalidArgumentError(f"{what}: rank {root} is not in 0..{self._size - 1}, the ranks of this group")
        return root


def is_async(opts: Any) -> bool:
    """False when the caller waits at once. torch before 2.8 does not say."""
    return bool(getattr(opts, "asyncOp", True))


def has_limit(opts: Any) -> bool:
    """True when this call has a timeout of its own."""
    return _limit_s(opts) is not None


def _limit_s(opts: Any) -> float | None:
    timeout: timedelta | None = getattr(opts, "timeout", None)
    return seconds(timeout)


class InPlace:
    """Tensors that an operation overwrites: as they are where they are contiguous, else copies that go back."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        self.buffers = [contiguous(tensor) for tensor in tensors]
        self._copied = any(buffer is not tensor for tensor, buffer in zip(tensors, self.buffers, strict=True))

    @property
    def finish(self) -> Any:
        """What brings the copies back; None where there are none."""
        return self._copy_back if self._copied else None

    def _copy_back(self, _: Any) -> None:
        for tensor, buffer in zip(self.tensors, self.buffers, strict=True):
            if buffer is not tensor:
                tensor.copy_(buffer)
