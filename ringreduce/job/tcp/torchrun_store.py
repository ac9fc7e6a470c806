"""torchrun's own key-value store, which its agent keeps at MASTER_ADDR:MASTER_PORT, as a way to tell all ranks a text.

The store asks nobody who he is: what is read there is no secret, and is believed only as far as a proof of the job's
secret then shows it to be true. torch is imported when a text is told, not before.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from ringreduce.errors import TimeoutError, UnavailableError
from ringreduce.job.deadline import Deadline

GONE_S = 1.0
"""How long a look waits for a text that was there a moment ago."""
LONGEST_S = 365 * 86400.0  # for a store, which has no word for "no limit"


class ToldAgainError(Exception):
    """Rank 0 has told another text since this rank has read one, which was of the ranks that torchrun had before."""


class ToldByStore:
    """Rank 0's text, on all ranks; for one meeting.

    The store outlives the ranks, and nothing says to all of them how often torchrun has started them: an agent counts
    only the restarts that its own ranks have caused. So a rank may read what an earlier rank 0 has told. `deadline`
    raises ToldAgainError from its check() as soon as the store holds another text than the one that was read.

    Args:
        count: how many times this job has done so.
        me: how messages begin.
        timeout_s: until all ranks must have met; 0 = no limit.
    """

    def __init__(self, count: int, me: str, timeout_s: float) -> None:
        self.deadline = Deadline(timeout_s, self._check)
        self._me = me
        self._key = f"ringreduce/rank 0/{count}"
        self._store: Any = None
        self._read: bytes | None = None

    def tell(self, text: str | None) -> str:
        """Rank 0's text; called again after ToldAgainError.

        Args:
            text: rank 0's; None elsewhere.

        Raises:
            UnavailableError: there is no such store, or it cannot be reached.
            TimeoutError: rank 0 has not told its text.
        """
        if self._store is None:
            self._store = _store(self._me, self.deadline)
        with self._named_errors():
            if text is not None:
                self._store.set(self._key, text)
                return text
            pause_s = 1e-3
            while not self._store.check([self._key]):
                if self.deadline.expired():
                    raise TimeoutError(
                        f"{self._me}: rank 0 has not written into torchrun's store at {_where()} where it listens "
                        f"within {self.deadline.timeout_s:g} s: its own error says why, or it does not call init()"
                    )
                time.sleep(min(pause_s, self.deadline.remaining_s()))
                pause_s = min(2 * pause_s, 0.1)
            self._read = bytes(self._store.get(self._key))
            return self._read.decode(errors="replace")

    def forget(self) -> None:
        """Called by rank 0 once all ranks have met: ranks that are started later shall not read this text."""
        with contextlib.suppress(RuntimeError):  # the meeting has succeeded, whatever the store does
            self._store.delete_key(self._key)

    def close(self) -> None:
        """Leaves the store."""
        self._store = None

    def _check(self) -> None:
        if self._read is None:
            return
        try:
            if not self._store.check([self._key]):
                return
            self._store.set_timeout(timedelta(seconds=GONE_S))
            text = bytes(self._store.get(self._key))
        except RuntimeError:  # the key was deleted meanwhile: all have met. What the store says is not needed any more
            return
        if text != self._read:
            raise ToldAgainError

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's DistError
            if isinstance(error, TimeoutError):
                raise
            raise UnavailableError(f"{self._me}: torchrun's store at {_where()} has failed: {error}") from error


def _store(me: str, deadline: Deadline) -> Any:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise UnavailableError(
            f"{me}: torchrun keeps no store that ranks could ask where rank 0 listens (TORCHELASTIC_USE_AGENT_STORE is "
            "not True): set RINGREDUCE_ADDRESS=host:port on all ranks, with an address of rank 0's host"
        )
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
    except ImportError as error:
        raise UnavailableError(
            f"{me}: torch cannot be imported to ask torchrun's store where rank 0 listens ({error}): set "
            "RINGREDUCE_ADDRESS=host:port on all ranks"
        ) from error
    seconds = min(deadline.remaining_s(), LONGEST_S)
    try:
        return TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=seconds)
        )
    except (RuntimeError, KeyError, ValueError) as error:
        raise UnavailableError(
            f"{me}: torchrun's store at {_where()} cannot be reached: {error}. Set RINGREDUCE_ADDRESS=host:port on all "
            "ranks, with an address of rank 0's host"
        ) from error


def _where() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
