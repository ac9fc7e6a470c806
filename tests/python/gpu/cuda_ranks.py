"""What the tests of GPU memory share: tensors from the oracle's arrays and back, and where ranks run.

Within a rank. torch and CuPy are imported by whoever calls, so that collecting the tests imports neither.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle


def start() -> tuple[Any, Any, Any]:
    """(torch, ringreduce.torch, this rank's device), initialised; ranks share GPUs where there are fewer."""
    import torch

    import ringreduce.torch as hvd

    hvd.init()
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
