"""torchrun's own key-value store, which its agent keeps at MASTER_ADDR:MASTER_PORT, as a way to tell all ranks a text.

The store asks nobody who he is: what is read there is no secret, and is believed only as far as a proof of the job's
secret then shows it to be true. torch is imported when a text is told, not before.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ringreduce.errors import TimeoutError, UnavailableError
from ringreduce.job.deadline import CHECK_S, Deadline
from ringreduce.job.tcp.store_calls import LAST_ANSWER_S, Call, StoreCalls

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
        self._calls = StoreCalls()
        self._look: Call | None = None
        """The last look for another text, which has not returned yet."""
        self._read: bytes | None = None

    def tell(self, text: str | None) -> str:
        """Rank 0's text; called again after ToldAgainError.

        Args:
            text: rank 0's; None elsewhere.

        Raises:
            UnavailableError: there is no such store, or it cannot be reached.
            TimeoutError: rank 0 has not told its text, or the store does not answer.
        """
        if self._store is None:
            self._store = self._called(_maker(self._me, self.deadline))
        store = self._store
        with self._named_errors():
            if text is not None:
                self._called(lambda: store.set(self._key, text))
                return text
            pause_s = 1e-3
            while not self._called(lambda: store.check([self._key])):
                if self.deadline.expired():
                    raise TimeoutError(
                        f"{self._me}: rank 0 has not written into torchrun's store at {_where()} where it listens "
                        f"within {self.deadline.timeout_s:g} s: its own error says why, or it does not call init()"
                    )
                time.sleep(min(pause_s, self.deadline.remaining_s()))
                pause_s = min(2 * pause_s, 0.1)
            self._read = bytes(self._called(lambda: store.get(self._key)))
            return self._read.decode(errors="replace")

    def forget(self) -> None:
        """Called by rank 0 once all ranks have met: ranks that are started later shall not read this text."""
        store = self._store
        call = self._calls.begin(lambda: store.delete_key(self._key))
        with contextlib.suppress(RuntimeError):  # the meeting has succeeded, whatever the store does
            if call.has_ended(GONE_S):
                call.answer()

    def close(self) -> None:
        """Leaves the store."""
        self._store = self._look = None
        self._calls.close()

    def _called(self, what: Callable[[], Any]) -> Any:
        """What a call of the store returns. Raises what it raises, and TimeoutError where it does not return in time.

        So does a call whose answer nobody waits for any more: the store makes one call at a time.
        """
        call = self._calls.begin(what)
        left = self.deadline.wait_s()
        if not call.has_ended(None if left is None else left + LAST_ANSWER_S):
            raise TimeoutError(
                f"{self._me}: torchrun's store at {_where()} does not answer within {self.deadline.timeout_s:g} s: is "
                "its agent stopped, or its host gone?"
            )
        return call.answer()

    def _check(self) -> None:
        if self._read is None:
            return
        is_new = self._look is None
        look = self._look = self._look or self._calls.begin(self._another_text)
        # The store may be stopped. Who has read the text does not need it any more, and waits once at most.
        if look.has_ended(CHECK_S if is_new else 0.0):
            self._look = None
            if look.answer():
                raise ToldAgainError

    def _another_text(self) -> bool:
        """Whether the store holds another text than the one that was read."""
        store = self._store
        try:
            if not store.check([self._key]):
                return False
            store.set_timeout(timedelta(seconds=GONE_S))
            return bytes(store.get(self._key)) != self._read
        except RuntimeError:  # the key was deleted meanwhile: all have met. What the store says is not needed any more
            return False

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's DistError
            if isinstance(error, TimeoutError):
                raise
            raise UnavailableError(f"{self._me}: torchrun's store at {_where()} has failed: {error}") from error


def _maker(me: str, deadline: Deadline) -> Callable[[], Any]:
    """What connects to torchrun's store, and returns it."""
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

    def make() -> Any:
        seconds = min(deadline.remaining_s(), LONGEST_S)
        try:
            return TCPStore(
                os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=seconds)
            )
        except (RuntimeError, KeyError, ValueError) as error:
            raise UnavailableError(
                f"{me}: torchrun's store at {_where()} cannot be reached: {error}. Set RINGREDUCE_ADDRESS=host:port on "
                "all ranks, with an address of rank 0's host"
            ) from error

    return make


def _where() -> str:
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
