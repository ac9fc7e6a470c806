"""The process group: what torch.distributed holds, puts into DeviceMeshes and hands to DDP, FSDP and DTensor.

A subclass of torch's ProcessGroup, in Python alone, so that one build serves every version of torch. Where torch
changed a method's name both names are there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist

from ringreduce.errors import UnavailableError
from ringreduce.job import deadline
from ringreduce.torch import cuda, profiling, tensors
from ringreduce.torch.distributed import (
    base,
    data_movement,
    dynamo,
    futures,
    layout,
    membership,
    p2p,
    reductions,
    sparse,
    work,
)
from ringreduce.torch.distributed.data_movement import DataMovement
from ringreduce.torch.distributed.membership import Membership
from ringreduce.torch.distributed.p2p import PointToPoint
from ringreduce.torch.distributed.reductions import Reductions
from ringreduce.torch.distributed.work import Completer, seconds

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from ringreduce.job.report_interval import Reported

NAME = "ringreduce"
CPU = torch.device("cpu")
DEVICES = [CPU, torch.device("cuda")] if cuda.BUILT else [CPU]


class ProcessGroup(Reductions, DataMovement, PointToPoint, dist.ProcessGroup):  # type: ignore[misc]  # torch's overloads
    """One group of ranks. Construction is collective over the members.

    Args:
        store: of this group alone.
        rank, size: within the group.
        timeout: of the rendezvous and of every operation; an operation that takes longer fails the group.
        name: torch's name of the group.
        ranks: global ranks of the members, for texts.

    Raises:
        TimeoutError: not all members came.
        UnavailableError: they are on several hosts, and there is no secret for connections between them.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta, name: str, ranks: Sequence[int]) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg, arg-type]  # the stubs know another form only
        self._rank, self._size = rank, size
        self._store = store
        self._name, self._desc = name, ""
        self._ranks = list(ranks) or list(range(size))
        self._program = futures.Calls(name, self._ranks)
        self._completer = Completer(self._program)
        self._completers = {}
        self._coalescing = threading.local()
        self._member = Membership(store, rank, size, seconds(timeout) or 0.0, f"ringreduce.torch.{name}", self._ranks)
        self._member.on_leave(self._stop)

    # --- who and where

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Number of ranks of the group."""
        return self._size

    def getBackendName(self) -> str:
        """ "ringreduce"."""
        return NAME

    _get_backend_name = name = getBackendName
    getRank, getSize = rank, size

    def getGroupName(self) -> str:
        """torch's name of the group, by which functional collectives find it."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch once the group is made."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What the group is for, in the words of whoever made it."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """Called by torch once the group is made."""
        self._desc = desc

    _set_group_name, group_name = setGroupName, property(getGroupName)
    _set_group_desc, group_desc = setGroupDesc, property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return DEVICES

    def _get_backend(self, device: torch.device) -> ProcessGroup:  # type: ignore[override]
        """Itself: the group is its own and only backend."""
        types = [its.type for its in DEVICES]
        if torch.device(device).type not in types:
            what = " and ".join(types).upper()
            raise UnavailableError(f"the backend {NAME} has nothing for {device} memory; it communicates {what} memory")
        return self

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def get_group_store(self) -> Store:
        """The store that the group was made with."""
        return self._store

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing: hooks are what would need it."""

    def reported(self) -> Reported:
        """Of whom ReportLog(group=...) tells: this rank among the group's."""
        return self._member.reported()

    # --- life

    def set_timeout(self, timeout: timedelta) -> None:
        """Replaces the timeout of every operation, also of those that are pending here; 0 = no limit."""
        self._member.set_timeout(seconds(timeout) or 0.0)

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leaves the group; dist.destroy_process_group() calls it. Pending operations fail with ShutdownError.

        Does not wait for other ranks, but between hosts for at most 2 s, so that they are told. Those whose operations
        need this rank raise ShutdownError too. Where this rank
        handles an exception, in a `finally`, say, they raise PeerLostError, which tells it.
        """
        self._member.leave(sys.exc_info()[1])

    def abort(self) -> None:
        """The same as shutdown(): a stuck operation ends with ShutdownError at once."""
        self._member.leave(sys.exc_info()[1])

    def _stop(self) -> None:
        self._completer.stop()  # first: from here on, _completer_of() gives stopped ones
        for completer in list(self._completers.values()):
            completer.stop()

    def split_group(self, *_: Any, **__: Any) -> NoReturn:
        """Not available: dist.new_group() makes sub-groups."""
        raise UnavailableError(f"a group of the backend {NAME} cannot be split; dist.new_group(ranks) makes sub-groups")

    splitGroup = split_group

    def __repr__(self) -> str:
        return f"<ringreduce process group {self._name!r}: rank {self._rank} of {self._size}, ranks {self._ranks}>"


PARTS = (
    deadline,
    cuda,
    profiling,
    tensors,
    base,
    data_movement,
    futures,
    layout,
    membership,
    p2p,
    reductions,
    sparse,
    work,
)
dynamo.skip(*PARTS, sys.modules[__name__])
