"""One rank of a competitor's job, or one end of the stream that measures a link. A Unix socket brings its orders.

    LAUNCHER python -m across.worker KIND SOCKET        # KIND: ringreduce, mpi, gloo, source or sink

The socket has a path, so that it reaches beyond the host and nothing of it crosses the links. A rank says who it is,
then answers orders, one JSON line each; it sleeps between them, whatever its library would do with the time. It leaves
when the other side closes.
"""

from __future__ import annotations

import gc
import json
import socket
import sys
import time
from typing import Any

import numpy as np

from ringreduce.bench.memory import private

from .calls import Library, connect
from .pattern import Pattern

PORT = 5001
PIECE = 1 << 20  # bytes of one send() or recv()
RAMP = 4 << 20  # bytes before the clock: TCP has opened its window then, and the token buckets are empty
CONNECT_S = 20.0


def main(kind: str, path: str) -> int:
    """Runs until the other side closes. Returns 0."""
    with socket.socket(socket.AF_UNIX) as control:
        answer = stream(kind) if kind in ("source", "sink") else reductions(connect(kind))
        control.connect(path)
        with control.makefile("rw", encoding="utf-8") as lines:
            print(json.dumps(next(answer)), file=lines, flush=True)
            for line in lines:
                print(json.dumps(answer.send(json.loads(line))), file=lines, flush=True)
        answer.close()
    return 0


def reductions(library: Library) -> Any:
    """A generator that takes orders (rounds.py) and gives {"seconds", "cpu_seconds", "wrong"}."""
    order = yield {"rank": library.rank, "size": library.size, "version": library.version}
    try:
        patterns: dict[int, Pattern] = {}
        while True:
            count = order["nbytes"] // 4
            if count not in patterns:
                patterns[count] = Pattern(count, library.rank, library.size)
            order = yield timed(library, patterns[count], count, order)
    finally:
        library.close()


def timed(library: Library, pattern: Pattern, count: int, order: dict[str, Any]) -> dict[str, Any]:
    """Trains of calls, each call on a buffer of its own: rewrite, barrier, clock, calls, clock; then all is compared.

    The seconds are a train's divided by its calls, as nccl-tests counts: of a call alone, ranks that share two cores
    would time the end of the barrier. The processor's seconds are those of all threads of the process.
    """
    buffers = [private(count, np.float32) for _ in range(order["calls"])]
    calls = [library.call(order["how"], x) for x in buffers]
    seconds, cpu_seconds, wrong = [], [], 0
    gc.disable()
    try:
        for train in range(order["warmup"] + order["trains"]):
            for turn, x in enumerate(buffers):
                pattern.write(x, train + turn)
            library.barrier()
            cpu, start = time.process_time_ns(), time.perf_counter_ns()
            for call in calls:
                call()
            seconds.append((time.perf_counter_ns() - start) * 1e-9 / len(calls))
            cpu_seconds.append((time.process_time_ns() - cpu) * 1e-9 / len(calls))
            for turn, x in enumerate(buffers):
                wrong += pattern.wrong(x, train + turn, order["wire"], order["hosts"])
    finally:
        gc.enable()
    first = order["warmup"]
    return {"seconds": seconds[first:], "cpu_seconds": cpu_seconds[first:], "wrong": wrong}


def stream(kind: str) -> Any:
    """One TCP connection from host to host. Takes {"nbytes"}; the sink gives its seconds and the bytes in them."""
    memory = bytearray(PIECE)
    if kind == "source":
        with socket.create_server(("", PORT)) as server:
            order = yield {"rank": 0, "size": 2, "version": ""}
            server.settimeout(CONNECT_S)
            with server.accept()[0] as wire:
                while True:
                    for _ in range((RAMP + order["nbytes"]) // PIECE):
                        wire.sendall(memory)
                    order = yield {}
    order = yield {"rank": 1, "size": 2, "version": ""}
    with socket.create_connection((order["to"], PORT), CONNECT_S) as wire:
        while True:
            start, got, counted = 0, 0, 0
            while got < RAMP + order["nbytes"] // PIECE * PIECE:
                part = wire.recv_into(memory)
                if part == 0:
                    raise ConnectionError("the source has closed the stream")
                got += part
                if start:
                    counted += part
                elif got >= RAMP:
                    start = time.perf_counter_ns()
            order = yield {"seconds": (time.perf_counter_ns() - start) * 1e-9, "nbytes": counted}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
