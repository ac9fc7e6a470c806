"""One rank of tests/python/mpi/test_mpi_link.py, started by an MPI's own mpirun: `python -m mpi4py links.py SCENARIO`.

Rank 0 prints FOUND and a JSON list of what each rank found; a check that fails ends the job.
"""

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import mpi4py
import numpy as np
from deadlines import HANG_S
from numpy.typing import NDArray

tags = itertools.count(100)  # ranks make their links in the same order
SUM = 1
MAX = 4


def until(step: Callable[[], bool]) -> None:
    """Calls step() until it is True; gives way in between, as ranks outnumber cores."""
    deadline = time.monotonic() + HANG_S
    while not step():
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0)


class Ring:
    """All-reduce in place over links to the neighbours, the textbook's way, one step at a time."""

    def __init__(self, communicator: Any, x: NDArray[Any], op: int = SUM, **options: int) -> None:
        self.rank, self.size, self.x, self.op = communicator.rank, communicator.size, x, op
        # For two ranks both neighbours are the same one, hence a tag for each direction.
        onward, back = next(tags), next(tags)
        if self.size > 1:
            self.right = communicator.link((self.rank + 1) % self.size, onward, back, **options)
            self.left = communicator.link((self.rank - 1) % self.size, back, onward, **options)
        self.begin(0)

    def begin(self, number: int) -> None:
        self.number, self.sent, self.received = number, 0, 0

    def part(self, index: int) -> NDArray[Any]:
        ends = [self.x.size * i // self.size for i in range(self.size + 1)]
        return self.x[ends[index % self.size] : ends[index % self.size + 1]]

    def step(self) -> bool:
        """True when all is reduced."""
        if self.number == 2 * (self.size - 1):
            return True
        out, into = self.part(self.rank - self.number), self.part(self.rank - self.number - 1)
        if self.sent < out.nbytes:
            self.sent += self.right.push(out.view(np.uint8)[self.sent :])
        if self.received < into.nbytes:
            if self.number < self.size - 1:
                self.received += self.left.fold(into[self.received // into.itemsize :], self.op)
            else:
                self.received += self.left.pull(into.view(np.uint8)[self.received :])
        if self.sent == out.nbytes and self.received == into.nbytes:
            self.begin(self.number + 1)
        return False


def integers(rank: int, count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) % 1013 * (rank + 3) - rank


def check_ring(communicator: Any, count: int, dtype: str, **options: int) -> None:
    x = integers(communicator.rank, count).astype(dtype)
    until(Ring(communicator, x, **options).step)
    total = sum(integers(rank, count) for rank in range(communicator.size))
    np.testing.assert_array_equal(x, total.astype(dtype), err_msg=f"{count} {dtype}")


def check_traffic(communicator: Any, nbytes: int, **options: int) -> None:
    """Everybody to everybody at once, in pieces of random size at both ends."""
    me = communicator.rank
    peers = [peer for peer in range(communicator.size) if peer != me]
    tag = next(tags)
    links = {peer: communicator.link(peer, tag, tag, **options) for peer in peers}
    streams = {peer: np.random.default_rng([me, peer]).bytes(nbytes) for peer in peers}
    arrived = {peer: bytearray() for peer in peers}
    sent = dict.fromkeys(peers, 0)
    sizes = random.Random(me)
    scratch = bytearray(1 << 20)

    def step() -> bool:
        for peer in peers:
            largest = 10 ** sizes.randrange(1, 7)
            left = streams[peer][sent[peer] : sent[peer] + sizes.randrange(1, largest)]
            sent[peer] += links[peer].push(left) if left else 0
            wanted = min(sizes.randrange(1, largest), nbytes - len(arrived[peer]), len(scratch))
            n = links[peer].pull(memoryview(scratch)[:wanted])
            arrived[peer] += scratch[:n]
        return all(sent[peer] == nbytes == len(arrived[peer]) for peer in peers)

    until(step)
    for peer in peers:
        assert arrived[peer] == np.random.default_rng([peer, me]).bytes(nbytes), f"from {peer}"


def refusal(call: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def write(line: str) -> None:
    """In one piece: launchers mix what ranks write as it comes."""
    os.write(1, f"{line}\n".encode())


def say(MPI: Any, found: Any) -> None:
    everybody = MPI.COMM_WORLD.gather(found)
    if everybody is not None:
        write(f"FOUND {json.dumps(everybody)}")


def links() -> None:
    """The whole of it, on the world, on parts of it, and on several at once."""
    from mpi4py import MPI

    from ringreduce import errors
    from ringreduce.job import mpi

    world = mpi.communicator(MPI.COMM_WORLD)
    assert (world.rank, world.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    for count in (1, 2, world.size - 1, world.size, 1009, 250_007):
        check_ring(world, count, "float32")
    check_ring(world, 10_007, "int16", message_nbytes=1001, depth=3)
    check_ring(world, 601, "float64", message_nbytes=13, depth=1)
    check_ring(world, 1_500_007, "int64", message_nbytes=1 << 20, depth=2)
    check_traffic(world, 3_000_017)
    check_traffic(world, 200_003, message_nbytes=1001, depth=2)

    # Two more at once: halves, and all ranks the other way round.
    half = mpi.communicator(MPI.COMM_WORLD.Split(world.rank % 2))
    turned = mpi.communicator(MPI.COMM_WORLD.Split(0, -world.rank))
    assert turned.rank == world.size - 1 - world.rank
    rings = [Ring(c, integers(c.rank, 20_011), SUM if c is not turned else MAX) for c in (half, world, turned)]
    until(lambda: sum(ring.step() for ring in rings) == len(rings))
    for ring, fold in zip(rings, (np.sum, np.sum, np.max), strict=True):
        np.testing.assert_array_equal(ring.x, fold([integers(r, 20_011) for r in range(ring.size)], axis=0))
    half.close()
    half.close()
    assert "has been closed" in refusal(lambda: half.link(0, 1, 1).push(b"x"), errors.ShutdownError)
    check_ring(turned, 1009, "float32")
    assert "not a member" in refusal(lambda: mpi.communicator(MPI.COMM_NULL), errors.InvalidArgumentError)
    assert "not an intracommunicator" in refusal(lambda: mpi.communicator("world"), errors.InvalidArgumentError)

    until(lambda: not world.progress() and not turned.progress())

    # An error of MPI comes back as one of ours, with MPI's text: a message that is longer than what the other expects.
    # What the links have sent by then stays under way until the end.
    longer = world.link((world.rank + 1) % world.size, 11, 12)
    shorter = world.link((world.rank - 1) % world.size, 12, 11, message_nbytes=100)
    try:
        until(lambda: longer.push(bytes(1000)) + shorter.pull(bytearray(1)) < 0)
        truncated = "none"
    except errors.HorovodInternalError as error:
        truncated = str(error)
    say(MPI, {"size": world.size, "threads": world.thread_level, "truncated": truncated})


def unfinished(MPI: Any) -> tuple[Any, list[Any], list[str]]:
    """A communicator with messages under way in every state that there is, and what its end has called."""
    from ringreduce.job import mpi

    called: list[str] = []

    def before_close() -> None:
        called.append("before_close")
        write("CLOSING")

    c = mpi.communicator(before_close=before_close)
    peer = (c.rank + 1) % c.size
    left, untouched = c.link(peer, 1, 1), c.link(peer, 2, 2)
    # Messages of all sizes that nobody pulls; receives that nothing arrives for, and one that waits within a message.
    for nbytes in (1, 1000, 100_000, 3_000_000):
        untouched.push(bytes(nbytes))
    assert c.link(peer, 3, 3).pull(bytearray(10)) == 0
    left.push(bytes(300_000))
    until(lambda: left.pull(bytearray(10)) == 10)
    return c, [left, untouched], called


def finalize() -> None:
    """MPI.Finalize() with links still there, then calls."""
    from mpi4py import MPI

    from ringreduce import errors
    from ringreduce.job import mpi

    c, opened, called = unfinished(MPI)
    say(MPI, "unfinished")
    MPI.Finalize()
    assert called == ["before_close"], called
    for call in (lambda: opened[0].push(b"x"), lambda: opened[1].pull(bytearray(1)), mpi.communicator):
        assert "MPI_Finalize has been called" in refusal(call, errors.ShutdownError)
    opened.clear()
    c.close()


def leave() -> None:
    """The interpreter ends with links still there, and the functions of the module."""
    from mpi4py import MPI

    global kept
    kept = unfinished(MPI)
    say(MPI, "unfinished")


def pulled_with_one_unread(MPI: Any, number: int) -> list[str]:
    """What rank 1's link pulls on a new communicator, which is closed with a message that nobody has received."""
    from ringreduce.job import mpi

    c = mpi.communicator()
    link = c.link(1 - c.rank, 5, 5)

    def push(word: bytes) -> None:
        assert link.push(word % number) == len(word % number)
        until(lambda: not c.progress())

    word = bytearray(len("pulled 0"))
    if c.rank == 0:
        push(b"pulled %d")
    else:
        until(lambda: link.pull(word) == len(word))  # a message comes whole
        link = None
    MPI.COMM_WORLD.Barrier()
    if c.rank == 0:
        push(b"unread %d")  # not synchronous, as the first is: it leaves although nobody receives it
    c.close()
    return [word.decode()] if c.rank == 1 else []


def successors() -> None:
    """Communicators one after the other."""
    from mpi4py import MPI

    say(MPI, [word for number in range(4) for word in pulled_with_one_unread(MPI, number)])


def levels(level: str, initialize: str) -> None:
    """mpi4py.rc: a thread level; who initialises: mpi4py, the user, or ringreduce."""
    import warnings

    mpi4py.rc.thread_level = level
    if initialize != "mpi4py":
        mpi4py.rc.initialize = False
    from mpi4py import MPI

    from ringreduce import errors
    from ringreduce.job import mpi

    if initialize == "user":
        MPI.Init_thread(getattr(MPI, f"THREAD_{level.upper()}"))
    found = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            c = mpi.communicator()
            found["granted"] = c.thread_level
            check_ring(c, 1009, "float32")
            check_ring(mpi.communicator(MPI.COMM_WORLD), 1009, "float64")
        except errors.UnavailableError as error:
            found["error"] = str(error)
    found["warnings"] = [str(item.message) for item in caught]
    say(MPI, found)
    if initialize == "user":
        MPI.Finalize()


def main(argv: Sequence[str]) -> None:
    scenarios: dict[str, Callable[..., None]] = {f.__name__: f for f in (links, finalize, leave, successors, levels)}
    scenarios[argv[0]](*argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
