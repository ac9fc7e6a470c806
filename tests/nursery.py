"""Many short jobs from one warm process: ranks are forks of a process that has imported everything and joined nothing.

A fork is ready in milliseconds where a new interpreter takes half a second, so hundreds of deaths fit into a test. To
be called within a rank of ranks.py (start_ranks(hunt, 1)), which bounds all of it and dies with the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
LIMIT_S = 20.0  # for one job; far more than any of them takes


class Litter:
    """The ranks of one job. Each calls work(tell, *args), where tell("word") reaches next_word(); its result is JSON.

    Leaving the `with` block kills what still runs.
    """

    def __init__(self, size: int, work: Callable[..., Any], *args: Any) -> None:
        self.size = size
        self.pids: list[int] = []
        self._rendezvous = f"test-{os.getpid()}-{secrets.token_hex(8)}:{secrets.token_hex(32)}"
        self._deadline = time.monotonic() + LIMIT_S
        self._read, self._write = os.pipe()
        self._unread = b""
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                self._live(rank, work, args)
            self.pids.append(pid)
        os.close(self._write)

    def __enter__(self) -> Litter:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self.pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self._read)

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> float:
        """Signals a rank; returns time.monotonic() of just before."""
        moment = time.monotonic()
        os.kill(self.pids[rank], signum)
        return moment

    def next_word(self) -> tuple[int, Any] | None:
        """(rank, what it told or returned) in order of arrival; None when no rank is left that could say anything.

        Raises AssertionError, after every rank has shown on stderr where it hangs, when the job takes too long.
        """
        while b"\n" not in self._unread:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0 or not select.select([self._read], [], [], left_s)[0]:
                for pid in self.pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGUSR1)
                select.select([], [], [], 1.0)
                raise AssertionError(f"no word from a rank within {LIMIT_S:g} s: it hangs")
            more = os.read(self._read, 65536)
            if not more:
                return None
            self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        rank, word = json.loads(line)
        return rank, word

    def statuses(self) -> list[int]:
        """How the ranks ended, -N for signal N; after next_word() has returned None."""
        pids, self.pids = self.pids, []
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]

    def _live(self, rank: int, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """In the child; does not return."""
        status = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(self._read)
            os.environ["RINGREDUCE_RENDEZVOUS"] = self._rendezvous
            for prefix in ("RINGREDUCE_", "HOROVOD_"):
                for word, number in (("RANK", rank), ("SIZE", self.size)):
                    os.environ[prefix + word] = os.environ[f"{prefix}LOCAL_{word}"] = str(number)

            def tell(word: Any) -> None:
                os.write(self._write, json.dumps([rank, word]).encode() + b"\n")

            tell(work(tell, *args))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
