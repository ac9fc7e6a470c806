"""Messages between two ranks of a process group: send and recv."""

from __future__ import annotations

from typing import Any

import torch

from ringreduce.torch.distributed.base import Collectives, InPlace
from ringreduce.torch.distributed.layout import contiguous, movable
from ringreduce.torch.distributed.work import Completer, Work
from ringreduce.torch.tensors import on_stream

ANY_SOURCE = -2  # the core's word for any rank


class PointToPoint(Collectives):
    """Messages of a pair of ranks arrive in the order sent; the tag and the number of bytes must be those expected."""

    _completers: dict[tuple[str, int], Completer]

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        """Sends one tensor to a rank of the group."""
        tensor = self._one(tensors, "send")
        buffer = contiguous(tensor)
        native = self._member.group.send_async(movable(buffer), self._check_root(peer, "send"), tag)
        return self._noted(Work(on_stream(native, buffer), [tensor], None, self._completer_of("send", peer)))

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Work:
        """Receives into one tensor what a rank of the group sends."""
        return self._receive(self._one(tensors, "recv"), self._check_root(peer, "recv"), tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        """Receives the next message of whichever rank; the work's _source_rank() then says whose it was."""
        return self._receive(self._one(tensors, "recv"), ANY_SOURCE, tag)

    def _receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        place = InPlace([tensor])
        native = on_stream(self._member.group.recv_async(movable(place.buffers[0]), peer, tag), place.buffers[0])
        return self._noted(Work(native, [tensor], place.finish, self._completer_of("recv", peer)))

    def _completer_of(self, direction: str, peer: int) -> Completer:
        """Futures of one direction and peer complete in order; others must not wait for them.

        Another thread may ask after the group was left. Nobody else will stop what it gets then, so that is done here.
        """
        completer = self._completers.setdefault((direction, peer), Completer())
        if self._completer.is_stopped:
            completer.stop()
        return completer
