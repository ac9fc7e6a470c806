"""The file in which an agent gives its ranks the job's secret.

It has a path that a rank in a container can open too (apptainer, `unshare --user`), which the agent's descriptors have
not: their /proc/PID/fd is closed to other user namespaces, and elsewhere in other PID namespaces. Containers have the
host's /dev/shm more often than $XDG_RUNTIME_DIR.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable

from ringreduce.job.tcp.agents_secret import new_name

MEMORY = "/dev/shm"


class SecretFile:
    """One such file, in memory where that is possible, else in the folder for temporary files. Only its user reads it.

    Args:
        guard: takes a path before there is a file, and sees to it that the file goes where this process is killed.

    Raises OSError where no file can be written.
    """

    def __init__(self, secret: str, guard: Callable[[str], None]) -> None:
        self.path = ""
        self._guard = guard
        try:
            self._write(MEMORY, secret.encode())
        except OSError:
            self._write(tempfile.gettempdir(), secret.encode())  # which looks for a folder by writing into some

    def _write(self, folder: str, content: bytes) -> None:
        self.path = os.path.join(folder, new_name())
        self._guard(self.path)
        try:
            self._fill(content)
        except OSError:
            self.remove()
            raise

    def _fill(self, content: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            os.fchmod(fd, 0o600)
            file.write(content)

    def remove(self) -> None:
        """Removes the file. Idempotent."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
