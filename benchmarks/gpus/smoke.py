"""One rank of the first look at a GPU, started by ringrun: one thing of each kind, and where every thread stands if a
step does not end.

    ringrun -np 2 python smoke.py [--device cpu]

Each step is printed before it begins. If a step takes longer than STEP_S, Python's stacks go to stderr, then, where
cuda-gdb is found, the native stacks of all threads, and the rank is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch._dynamo  # which the first optimizer imports: 1 s, and 12 on a machine that does much else

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ringreduce.torch as hvd
from gpus import pattern

STEP_S = 12.0
WATCHER = """
while read -r -t "$1"; do :; done
if [ $? -gt 128 ]; then
  timeout 20 "$2" -batch -p "$3" -ex "thread apply all bt 12" 2>&1 | tail -c 16000 >&2
  kill -9 "$3"
fi
"""
COUNT = 1 << 18  # float32 of 1 MiB
TRAINED = 3
BATCH, FEATURES, HIDDEN, CLASSES = 8, 64, 300, 10


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps. Returns the exit status: 1 if a result was wrong."""
    parse = argparse.ArgumentParser()
    parse.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try this program")
    args = parse.parse_args(argv)
    start = time.monotonic()
    device = torch.device("cpu")
    bad = 0
    watcher = _watcher()

    def step(name: str, work: Callable[[], object]) -> None:
        nonlocal bad
        print(f"{time.monotonic() - start:5.1f} s: {name}", flush=True)
        assert watcher.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended with its first step that took long
            watcher.stdin.write(b"\n")
            watcher.stdin.flush()
        faulthandler.dump_traceback_later(STEP_S)
        wrong = work()
        faulthandler.cancel_dump_traceback_later()
        if isinstance(wrong, int) and wrong > 0:
            print(f"{name}: {wrong} wrong elements", flush=True)
            bad += wrong

    step("init", hvd.init)
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        step("the GPU's context", lambda: torch.cuda.set_device(device))
    step("the first all-reduce, 1 MiB", lambda: _allreduce(device, 0))
    step("the second", lambda: _allreduce(device, 1))
    step("an all-gather", lambda: _allgather(device))
    step("a broadcast", lambda: _broadcast(device))
    step("four at once, out of order", lambda: _at_once(device))
    step(f"{TRAINED} steps of AdamW, all kernels new to it", lambda: _train(device))
    step("shutdown", hvd.shutdown)
    assert watcher.stdin
    with contextlib.suppress(BrokenPipeError):
        watcher.stdin.close()
    watcher.wait()
    return int(bad > 0)


def _allreduce(device: torch.device, turn: int) -> int:
    tensor = torch.empty(COUNT, device=device)
    pattern.fill(tensor, hvd.rank(), turn)
    hvd.allreduce_(tensor, op=hvd.Average)
    return pattern.wrong(tensor, hvd.size(), turn, hvd.size())


def _allgather(device: torch.device) -> int:
    rows = hvd.allgather(torch.full((hvd.rank() + 1, 3), float(hvd.rank()), device=device))
    right = torch.cat([torch.full((rank + 1, 3), float(rank)) for rank in range(hvd.size())])
    return int((rows.cpu() != right).sum())


def _broadcast(device: torch.device) -> int:
    tensor = torch.full((COUNT,), float(hvd.rank() + 5), device=device)
    hvd.broadcast_(tensor, 0)
    return int((tensor.cpu() != 5.0).sum())


def _at_once(device: torch.device) -> int:
    order = range(4) if hvd.rank() % 2 == 0 else range(3, -1, -1)
    tensors = {turn: torch.empty(COUNT, device=device) for turn in order}
    handles = {}
    for turn, tensor in tensors.items():
        pattern.fill(tensor, hvd.rank(), turn)
        handles[turn] = hvd.allreduce_async_(tensor, op=hvd.Average, name=f"at-once.{turn}")
    bad = 0
    for turn in range(4):
        hvd.synchronize(handles[turn])
        bad += pattern.wrong(tensors[turn], hvd.size(), turn, hvd.size())
    return bad


def _train(device: torch.device) -> int:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(FEATURES, HIDDEN), torch.nn.GELU(), torch.nn.LayerNorm(HIDDEN)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN, CLASSES)).to(device)
    plain = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    for turn in range(TRAINED):
        torch.manual_seed(10 * turn + hvd.rank())
        inputs = torch.randn(BATCH, FEATURES, device=device)
        labels = torch.randint(0, CLASSES, (BATCH,), device=device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = torch.cat([weight.detach().reshape(-1) for weight in model.parameters()]).cpu()
    everybody = hvd.allgather(weights[None])
    return int((everybody != everybody[0]).sum())


def _watcher() -> subprocess.Popen[bytes]:
    """A process that waits for a line of each step; else it has the debugger print this one's stacks, and kills it.

    A thread of this process could not: the interpreter may be locked by whoever waits for the driver.
    """
    debugger = shutil.which("cuda-gdb", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"]))
    words = [WATCHER, "watcher", str(STEP_S + 1), debugger or "true", str(os.getpid())]
    return subprocess.Popen(["bash", "-c", *words], stdin=subprocess.PIPE)


if __name__ == "__main__":
    sys.exit(main())
