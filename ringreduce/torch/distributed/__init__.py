"""The torch.distributed backend "ringreduce", registered by `import ringreduce.torch`.

    import ringreduce.torch
    import torch.distributed as dist

    dist.init_process_group("ringreduce")
    model = torch.nn.parallel.DistributedDataParallel(model)

It needs no hvd.init(): ranks meet in the store that torch hands over, and each group has memory of its own. Under
ringrun, mpirun and srun, init_method="ringreduce://" finds rank, size and store (launched.py). What is registered here
is small; the process group itself is loaded when the first group is made. docs/user/torch-distributed.md has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from ringreduce.errors import UnavailableError
from ringreduce.torch import cuda

NAME = "ringreduce"


def register() -> None:
    """Makes the backend known to torch. Does nothing twice, and nothing where torch was built without distributed."""
    if dist.is_available() and NAME not in dist.Backend.backend_list:
        devices = ["cpu", "cuda"] if cuda.BUILT else ["cpu"]
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=devices)
        dist.register_rendezvous_handler(NAME, _meet)  # type: ignore[attr-defined, no-untyped-call]  # ringreduce://


def _meet(url: str, **options: Any) -> Iterator[tuple[Any, int, int]]:
    from ringreduce.torch.distributed.launched import rendezvous

    return rendezvous(url, **options)


def _create(options: Any, pg_options: Any) -> Any:
    """What torch calls on each member for each new group. Collective over the group."""
    from ringreduce.torch.distributed.group import ProcessGroup

    if pg_options is not None:
        raise UnavailableError(f"{NAME} has no process group options; leave pg_options (here {pg_options!r}) out")
    return ProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
    )
