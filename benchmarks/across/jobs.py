"""Jobs that wait for orders: started once, asked again and again, stopped while others are asked, ended for sure.

To start a job takes seconds, so each lives through all rounds. What idle processes would do (poll, look after peers)
must not cost the others anything: between two orders a job's ranks are stopped by SIGSTOP.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import time
from subprocess import Popen
from typing import Any

from ringreduce.lab.lab import Lab, end

from .competitors import Job

START_S = 60.0
TAIL = 1500  # characters of a failed job's output that are kept
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Unanswered(Exception):
    """A job that did not do what it was told; status is "timeout" or "failed"."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Running:
    """A started job. Raises Unanswered with the job's output if not all of its ranks come.

    Args:
        number: unlike that of any other job of the lab.
    """

    def __init__(self, lab: Lab, job: Job, each: int, number: int) -> None:
        control = lab.folder / f"job-{number}"
        self._log = control.with_suffix(".log")
        self._ranks: list[socket.socket] = []
        self._pids: list[int] = []
        self._processes: list[Popen[str]] = []
        self.version = ""
        """As the library names itself."""
        try:
            with socket.socket(socket.AF_UNIX) as listener, self._log.open("w") as log:
                listener.bind(str(control))
                listener.listen(64)
                for host, command, environ in job.commands(lab, each, 20000 + number, control):
                    self._processes.append(lab.start(host, command, env=environ, output=log.fileno()))
                self._meet(listener, job.ranks(lab, each))
        except BaseException:
            self.end()
            raise
        self.stop()

    def ask(self, order: dict[str, Any], deadline_s: float) -> list[dict[str, Any]]:
        """Every rank's answer, by rank. Raises Unanswered; the job is of no more use then."""
        self._signal(signal.SIGCONT)
        try:
            text = json.dumps(order).encode() + b"\n"
            for rank in self._ranks:
                rank.sendall(text)
            return self._answers(self._ranks, deadline_s)
        except OSError as error:
            raise Unanswered("failed", f"{error}\n{self._said()}") from None
        finally:
            self.stop()

    def stop(self) -> None:
        """Lets none of its ranks run until the next order."""
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kills what there is of it."""
        self._signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.close()
        for process in self._processes:
            end(process)
        self._ranks.clear()
        self._pids.clear()

    def _meet(self, listener: socket.socket, size: int) -> None:
        deadline = time.monotonic() + START_S
        listener.settimeout(0.2)
        while len(self._ranks) < size:
            if time.monotonic() > deadline:
                raise Unanswered("timeout", f"{len(self._ranks)} of {size} ranks after {START_S:g} s\n{self._said()}")
            if any(process.poll() is not None for process in self._processes):
                raise Unanswered("failed", f"it did not start\n{self._said()}")
            with contextlib.suppress(TimeoutError):
                rank = listener.accept()[0]
                self._ranks.append(rank)
                # As this process counts, although the rank is in a PID namespace of its own.
                sent = rank.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
                self._pids.append(CREDENTIALS.unpack(sent)[0])
        said = self._answers(self._ranks, START_S)
        by_rank = sorted(zip(said, self._ranks, strict=True), key=lambda pair: int(pair[0]["rank"]))
        self._ranks = [rank for _, rank in by_rank]
        if sorted(one["rank"] for one in said) != list(range(size)) or {one["size"] for one in said} != {size}:
            raise Unanswered("failed", f"ranks {said} are not one job of {size}")
        self.version = said[0]["version"]

    def _answers(self, ranks: list[socket.socket], deadline_s: float) -> list[dict[str, Any]]:
        """One line from each, in this order."""
        deadline = time.monotonic() + deadline_s
        lines = dict.fromkeys(ranks, b"")
        with selectors.DefaultSelector() as selector:
            for rank in ranks:
                selector.register(rank, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise Unanswered("timeout", f"no answer within {deadline_s:g} s\n{self._said()}")
                for key, _ in ready:
                    speaker: Any = key.fileobj
                    part = speaker.recv(1 << 16)
                    if not part:
                        raise Unanswered("failed", f"a rank has left\n{self._said()}")
                    lines[speaker] += part
                    if part.endswith(b"\n"):
                        selector.unregister(speaker)
        return [json.loads(lines[rank]) for rank in ranks]

    def _signal(self, signum: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-TAIL:].strip()
