"""Cables that delay, reorder and lose packets: two TAP devices each, between which this process carries.

    python -m ringreduce.lab.cables SWITCH_PID DELAY_S REORDERED LOST SEED NAME=PID...

Prints "pid N" and "up 1" when the devices are there, and carries until its standard input ends, as a keeper does. The
kernel's own way to do this, tc netem, is a module that many kernels lack.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from ringreduce.errors import InvalidArgumentError
from ringreduce.lab import kernel
from ringreduce.lab.keeper import tell
from ringreduce.lab.network import INTERFACE, port

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
FRAME_NBYTES = 1 << 16
DELAY_MOST_S = 60.0
FRAMES_A_TURN = 64
"""Of one direction, before the others have theirs."""


def frames_most(delay_s: float) -> int:
    """As many frames may be on their way in one direction; more are lost, as in a switch without room.

    A link of 1 Gbit/s with packets of 1500 bytes has 83,000 a second.
    """
    return 5000 + int(delay_s * 100_000)


@dataclass(frozen=True)
class Cables:
    """What happens to the packets of each cable, in each direction. Two hosts have two cables between them.

    Raises InvalidArgumentError for a delay that is not from 0 to 60 s and for shares that are not from 0 to 1.
    """

    delay_s: float = 0.0
    """Seconds from one end of a cable to the other."""
    reordered: float = 0.0
    """The share of packets that take half of the delay, and overtake those before them."""
    lost: float = 0.0
    """The share of packets that are lost."""
    seed: int = 0
    """Of the random numbers that choose packets."""

    def __post_init__(self) -> None:
        if not 0 <= self.delay_s <= DELAY_MOST_S:
            raise InvalidArgumentError(f"a delay of {self.delay_s:g} s: it must be from 0 to {DELAY_MOST_S:g} s")
        for share in (self.reordered, self.lost):
            if not 0 <= share <= 1:
                raise InvalidArgumentError(f"a share of {share:g} of the packets: it must be from 0 to 1")


class Direction:
    """From one end of a cable to the other."""

    def __init__(self, source: int, target: int, cables: Cables, name: str) -> None:
        self.source = source
        self._target = target
        self._cables = cables
        self._frames_most = frames_most(cables.delay_s)
        self._random = random.Random(f"{cables.seed} {name}")
        self._on_the_way: list[tuple[float, int, bytes]] = []  # (when it arrives, its number, the frame), a heap
        self._taken = 0

    def take(self, now: float) -> None:
        """Takes the frames that are there, or some of them."""
        with suppress(BlockingIOError):
            for _ in range(FRAMES_A_TURN):
                frame = os.read(self.source, FRAME_NBYTES)
                is_lost = self._random.random() < self._cables.lost
                overtakes = self._random.random() < self._cables.reordered
                if is_lost or len(self._on_the_way) >= self._frames_most:
                    continue
                arrival = now + self._cables.delay_s * (0.5 if overtakes else 1.0)
                heapq.heappush(self._on_the_way, (arrival, self._taken, frame))
                self._taken += 1

    def give(self, now: float) -> float | None:
        """Gives on the frames that have arrived; when the next one does."""
        while self._on_the_way:
            arrival, _, frame = self._on_the_way[0]
            if arrival > now:
                return arrival
            heapq.heappop(self._on_the_way)
            try:
                os.write(self._target, frame)
            except OSError as error:
                if error.errno not in (errno.EIO, errno.EAGAIN):  # the device is down; its queue is full
                    raise
        return None


def tap(pid: int, name: str) -> int:
    """A new TAP device in the network namespace of a process: its descriptor, which does not block."""
    kernel.enter(pid, kernel.CLONE_NEWNET)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def carry(directions: list[Direction], stop: int) -> None:
    """Until there is an end of file at `stop`."""
    by_source = {direction.source: direction for direction in directions}
    next_s: float | None = None
    while True:
        wait_s = None if next_s is None else max(0.0, next_s - time.monotonic())
        ready = select.select([stop, *by_source], [], [], wait_s)[0]  # poll() would wait for whole milliseconds
        if stop in ready and not os.read(stop, 1):
            return
        now = time.monotonic()
        for fd in ready:
            if fd != stop:
                by_source[fd].take(now)
        arrivals = [direction.give(now) for direction in directions]
        next_s = min((arrival for arrival in arrivals if arrival is not None), default=None)


def main(switch: str, delay_s: str, reordered: str, lost: str, seed: str, *hosts: str) -> int:
    cables = Cables(float(delay_s), float(reordered), float(lost), int(seed))
    directions = []
    for host in hosts:
        name, _, pid = host.partition("=")
        ends = tap(int(pid), INTERFACE), tap(int(switch), port(name))
        directions.append(Direction(ends[0], ends[1], cables, f"from {name}"))
        directions.append(Direction(ends[1], ends[0], cables, f"to {name}"))
    tell(f"pid {os.getpid()}", "up 1")
    carry(directions, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
