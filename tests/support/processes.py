"""What a test asks of the kernel about a process."""

import time


def asleep(pid: int) -> None:
    """Waits until the process's main thread sleeps in the kernel, as a blocked call does between two looks."""
    deadline = time.monotonic() + 10
    futex = 0
    while futex < 3:
        assert time.monotonic() < deadline
        with open(f"/proc/{pid}/wchan") as wchan:
            futex = futex + 1 if "futex" in wchan.read() else 0
        time.sleep(0.01)
