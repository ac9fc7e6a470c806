"""One rank of a measurement, started by ringrun; rank 0 writes the figures, a JSON line each.

    ringrun -np 2 python ranks.py allreduce --out FILE [--sizes 8,...] [--limit-s 10] [--peer gloo|nccl]
    ringrun -np 2 python ranks.py step --out FILE
    ringrun -np 1 python ranks.py limits --out FILE

With --device cpu the first two run where there is no GPU, to try this program; with --device fake the first, on the
tests' fake CUDA driver, whose folder is then on the path.
Ranks share the GPU where there are more of them than GPUs. A time is the mean of calls made one after the other, on
the host's clock, from a barrier until the device has finished; a figure is the slowest rank's median of such times.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ringreduce.torch as hvd
from gpus import pattern
from gpus.step import measure_steps
from ringreduce import stats

SAMPLES = 5
SAMPLE_S = 0.03  # calls are repeated until a sample takes about so long
SIZES = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30]
COPY_NBYTES = 1 << 30
PINNED_NBYTES = 256 << 20


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what the arguments say. Returns 1 when a result was wrong."""
    parse = argparse.ArgumentParser()
    parse.add_argument("what", choices=("allreduce", "step", "limits"))
    parse.add_argument("--out", required=True)
    parse.add_argument("--sizes", type=lambda text: [int(word) for word in text.split(",")], default=SIZES)
    parse.add_argument("--limit-s", type=float, default=10.0)
    parse.add_argument("--peer", choices=("gloo", "nccl"))
    parse.add_argument("--device", choices=("cuda", "cpu", "fake"), default="cuda")
    parse.add_argument("--model", default="resnet50")
    args = parse.parse_args(argv)
    hvd.init()
    device = torch.device("cpu")
    fake = None
    if args.device == "fake":
        import fake_torch_gpu as fake

        fake.start()
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    rows = Rows(args.out)
    if args.what == "limits":
        limits(device, rows)
    elif args.what == "allreduce":
        allreduce(device, rows, args.sizes, args.limit_s, args.peer, fake)
    else:
        measure_steps(device, rows.add, timed, args.model)
    hvd.shutdown()
    return 1 if rows.wrong else 0


class Rows:
    """The figures of this measurement, each in the file as soon as it is there."""

    def __init__(self, path: str) -> None:
        self.wrong = False
        self._path = path

    def add(self, **row: Any) -> None:
        """Writes one figure, on rank 0."""
        self.wrong = self.wrong or bool(row.get("wrong"))
        if hvd.rank() == 0:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def slowest(value: float) -> float:
    """The largest of the ranks' values: the same number on all, so that all decide alike."""
    return float(hvd.allreduce(torch.tensor([value], dtype=torch.float64), op=hvd.Max)[0])


def finish() -> None:
    """Waits until the GPU has done what it was given, if one is in use."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def timed(call: Callable[[], Any], most: int = 200) -> list[float]:
    """Seconds of one call, several times; the slowest rank's. Collective."""
    for _ in range(2):
        call()
    finish()
    times: list[float] = []
    calls = 1
    for sample in range(SAMPLES + 1):
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        finish()
        took = slowest((time.perf_counter() - begun) / calls)
        if sample:
            times.append(took)
        else:
            calls = max(1, min(most, int(SAMPLE_S / max(took, 1e-6))))
    return times


class Operand:
    """A rank's tensor of float32: filled, and looked at. fake: fake_torch_gpu, where the tensor is on the fake GPU."""

    def __init__(self, count: int, device: torch.device, fake: Any) -> None:
        plain = torch.empty(count, device=device)
        self.tensor = fake.on_gpu(plain) if fake else plain
        self._is_fake = fake is not None

    def fill(self, turn: int) -> None:
        """With this rank's input of one round."""
        plain = torch.empty(self.tensor.numel()) if self._is_fake else self.tensor
        pattern.fill(plain, hvd.rank(), turn)
        if self._is_fake:
            self.tensor.copy_(plain)

    def wrong(self, turn: int, divisor: int) -> int:
        """How many elements are not what a round's result must be."""
        return pattern.wrong(self.tensor.cpu() if self._is_fake else self.tensor, hvd.size(), turn, divisor)


def allreduce(
    device: torch.device, rows: Rows, sizes: Sequence[int], limit_s: float, peer: str | None, fake: Any
) -> None:
    """All-reduces of float32 in place, size by size, until the time is up."""
    call, divisor, close = peer_call(peer, device) if peer else (ours, hvd.size(), lambda: None)
    end = time.monotonic() + limit_s
    for nbytes in sizes:
        operand = Operand(nbytes // 4, device, fake)
        tensor = operand.tensor
        operand.fill(0)
        before = stats()
        times = timed(lambda tensor=tensor: call(tensor), most=20 if peer else 200)  # type: ignore[misc]
        used = {key: count - before.get(key, 0) for key, count in stats().items() if count != before.get(key, 0)}
        # An average of averages is the average. A peer's sums grow, so only the last call is looked at.
        bad = 0 if peer else operand.wrong(0, divisor)
        operand.fill(1)
        call(tensor)
        bad += operand.wrong(1, divisor)
        rows.add(
            what="allreduce",
            library=peer or "ringreduce",
            path=None if peer else os.environ.get("RINGREDUCE_GPU_PATH", "auto"),
            ranks=hvd.size(),
            nbytes=nbytes,
            time_us=median(times) * 1e6,
            least_us=min(times) * 1e6,
            wrong=int(slowest(bad)),
            operations=used,
        )
        if slowest(time.monotonic()) > end:
            break
    close()


def ours(tensor: torch.Tensor) -> None:
    """An average in place."""
    hvd.allreduce_(tensor, op=hvd.Average)


def peer_call(peer: str, device: torch.device) -> tuple[Callable[[torch.Tensor], Any], int, Callable[[], Any]]:
    """The same by torch.distributed's own backend: (call, divisor of the sum, what ends it)."""
    import torch.distributed as dist

    store = None
    if hvd.rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, hvd.size(), True, wait_for_workers=False)
    port = hvd.broadcast_object(store.port if store else None, 0)
    store = store or dist.TCPStore("127.0.0.1", port, hvd.size(), False, wait_for_workers=False)
    dist.init_process_group(peer, store=store, rank=hvd.rank(), world_size=hvd.size())

    def call(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    return call, 1, dist.destroy_process_group


def limits(device: torch.device, rows: Rows) -> None:
    """What the GPU's memory and its link to the host allow, by torch's own copies."""
    src, dst = (torch.empty(COPY_NBYTES, dtype=torch.uint8, device=device) for _ in range(2))
    src.fill_(3)
    seconds = median(timed(lambda: dst.copy_(src)))
    rows.add(what="limit", name="copy", GBps=2e-9 * COPY_NBYTES / seconds, wrong=int((dst != 3).sum()))
    one, other = (torch.empty(PINNED_NBYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    side = torch.cuda.Stream()
    part, back = src[:PINNED_NBYTES], dst[:PINNED_NBYTES]
    other.fill_(5)

    def both() -> None:
        one.copy_(part, non_blocking=True)
        with torch.cuda.stream(side):
            back.copy_(other, non_blocking=True)

    def to_host() -> None:
        one.copy_(part, non_blocking=True)

    def to_device() -> None:
        back.copy_(other, non_blocking=True)

    for name, call in (("to host", to_host), ("to device", to_device), ("each way at once", both)):
        seconds = median(timed(call))
        rows.add(what="limit", name=name, GBps=1e-9 * PINNED_NBYTES / seconds, wrong=0)
    bad = int((one != 3).sum()) + int((back != 5).sum())
    rows.add(what="limit", name="copies are right", GBps=0.0, wrong=bad)


if __name__ == "__main__":
    sys.exit(main())
