"""A program of random operations for the ranks of a job, all of which are checked.

    python random_program.py SEED ROUNDS

What is called is drawn from the seed, the same on all ranks. The order in which a rank calls what has a name, and in
which it waits, is its own. Prints "done", or what was raised when a rank was lost.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ringreduce as rr

SIZES = (1, 3, 13, 100, 900, 2000, 5000, 70_000)
"""Elements of float64: quick operations, eager ones, and such as take the log and one block or many."""


class Program:
    """The rounds of one rank."""

    def __init__(self, seed: int) -> None:
        self.rank, self.size = rr.rank(), rr.size()
        self.all = random.Random(seed)
        self.own = random.Random(seed * 1000 + self.rank)
        self.sets: dict[tuple[int, ...], Any] = {}
        self.rounds: list[Callable[[], None]] = [
            self.named,
            self.unnamed,
            self.process_set,
            self.join,
            self.moved,
            self.messages,
            self.small,
        ]

    def go(self) -> None:
        """One round."""
        self.all.choice(self.rounds)()

    def sum_of(self, count: int, base: int, ranks: Any) -> np.ndarray:
        return np.arange(count) % 31 * len(ranks) + sum(base + rank for rank in ranks)

    def start(self, count: int, base: int, **how: Any) -> tuple[Any, np.ndarray]:
        """An asynchronous sum, and what it must give."""
        members = how["process_set"].ranks if "process_set" in how else range(self.size)
        x = np.arange(count) % 31 + float(base + self.rank)
        return rr.allreduce_async(x, op=rr.Sum, **how), self.sum_of(count, base, members)

    def finish(self, started: list[tuple[Any, np.ndarray]]) -> None:
        for handle, wanted in self.own.sample(started, len(started)):
            np.testing.assert_array_equal(handle.wait(), wanted)

    def named(self) -> None:
        tensors = [(f"tensor {i}", self.all.choice(SIZES), i) for i in range(self.all.randrange(1, 12))]
        order = self.own.sample(tensors, len(tensors))
        self.finish([self.start(count, base, name=name) for name, count, base in order])

    def unnamed(self) -> None:
        self.finish([self.start(self.all.choice(SIZES), i) for i in range(self.all.randrange(1, 40))])

    def small(self) -> None:
        for i in range(self.all.randrange(1, 60)):
            x = np.full(self.all.choice(SIZES[:5]), float(i + self.rank))
            assert (rr.allreduce(x, op=rr.Sum) == sum(i + rank for rank in range(self.size))).all()

    def process_set(self) -> None:
        members = tuple(sorted(self.all.sample(range(self.size), self.all.randrange(1, self.size))))
        if members not in self.sets:
            self.sets[members] = rr.add_process_set(list(members))
        if self.rank in members:
            one = self.sets[members]
            calls = [(self.all.choice(SIZES), i) for i in range(5)]
            self.finish([self.start(count, base, name=f"of set {base}", process_set=one) for count, base in calls])
        else:
            for _ in range(5):
                self.all.choice(SIZES)
        if len(self.sets) > 3:
            members = self.all.choice(sorted(self.sets))
            rr.remove_process_set(self.sets.pop(members))

    def join(self) -> None:
        steps = [self.all.randrange(5) for _ in range(self.size)]
        counts = [self.all.choice(SIZES) for _ in range(5)]
        for step in range(steps[self.rank]):
            x = np.full(counts[step], float(self.rank + 1))
            wanted = sum(rank + 1 for rank in range(self.size) if steps[rank] > step)
            assert (rr.allreduce(x, op=rr.Sum, name=f"step {step}" if step % 2 else None) == wanted).all()
        last = rr.join()
        assert steps[last] == max(steps), (last, steps)

    def moved(self) -> None:
        root = self.all.randrange(self.size)
        count = self.all.choice(SIZES)
        assert (rr.broadcast(np.full(count, float(self.rank)), root) == root).all()
        rows = rr.allgather(np.full((self.rank + 1, 3), self.rank), name="rows")
        assert rows[:, 0].tolist() == [rank for rank in range(self.size) for _ in range(rank + 1)]
        received = rr.alltoall(np.arange(self.size) * 100 + self.rank)
        received = received[0] if isinstance(received, tuple) else received
        assert received.tolist() == [self.rank * 100 + rank for rank in range(self.size)]

    def messages(self) -> None:
        count = self.all.choice(SIZES)
        away = self.all.randrange(1, self.size)
        sent = rr.send_async(np.full(count, float(self.rank)), (self.rank + away) % self.size)
        got = np.empty(count)
        rr.recv(got, (self.rank - away) % self.size)
        assert (got == (self.rank - away) % self.size).all()
        sent.wait()


def main(seed: int, rounds: int) -> None:
    """Runs the rounds."""
    rr.init()
    program = Program(seed)
    try:
        for number in range(rounds):
            if number == 1:
                print("at work", flush=True)
            program.go()
    except rr.PeerLostError as error:
        print(f"{time.time():.3f} {error}", flush=True)
        return
    rr.shutdown()
    print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
