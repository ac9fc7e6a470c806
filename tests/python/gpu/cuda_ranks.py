"""What the tests of GPU memory share: tensors from the oracle's arrays and back, and where ranks run.

Within a rank. torch and CuPy are imported by whoever calls, so that collecting the tests imports neither.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import oracle

TAKES_NCCL = "RR_TEST_TAKES_NCCL"


def environment(path: str) -> dict[str, str]:
    """That of ranks which take this path; "nccl": for whatever NCCL computes."""
    return {"RINGREDUCE_GPU_PATH": "auto", TAKES_NCCL: "1"} if path == "nccl" else {"RINGREDUCE_GPU_PATH": path}


def takes_nccl() -> bool:
    """Whether this rank's environment is environment("nccl")."""
    return TAKES_NCCL in os.environ


def start() -> tuple[Any, Any, Any]:
    """(torch, ringreduce.torch, this rank's device), initialised; ranks share GPUs where there are fewer."""
    import torch

    import ringreduce.torch as hvd

    hvd.init()
    if takes_nccl() and torch.cuda.device_count() < hvd.local_size():
        # NCCL takes two ranks on one GPU only if it believes that they are on two hosts, and then goes by sockets.
        os.environ.update(NCCL_HOSTID=f"rank {hvd.rank()}", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return torch, hvd, device


def to_torch(array: oracle.Array, device: Any) -> Any:
    """The array as a tensor on the device, bfloat16 included."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).to(device).view(torch.bfloat16)
    return torch.from_numpy(array.copy()).to(device)


def from_torch(tensor: Any) -> oracle.Array:
    """A tensor on the device as an array; waits for it."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.detach().view(torch.int16).cpu().numpy().view(oracle.dtype("bfloat16"))
    array: oracle.Array = tensor.detach().cpu().numpy()
    return array


def busy(torch: Any, device: Any, milliseconds: float = 200.0) -> None:
    """Keeps the current stream busy for a while, so that whoever does not wait for it reads what was there before."""
    cycles = int(milliseconds * 1e-3 * 1.5e9)
    torch.cuda._sleep(cycles)
