"""torchrun's own key-value store, which its agent keeps at MASTER_ADDR:MASTER_PORT, as a way to tell all ranks a text.

The store asks nobody who he is: what is read there is no secret, and is believed only as far as a proof of the job's
secret then shows it to be true. torch is imported when a text is told, not before.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

from ringreduce.errors import TimeoutError, UnavailableError
from ringreduce.job.deadline import Deadline

LONGEST_S = 365 * 86400.0  # for a store, which has no word for "no limit"


def tell(text: str | None, count: int, me: str, deadline: Deadline) -> str:
    """Rank 0's text, on all ranks.

    Args:
        text: rank 0's; None elsewhere.
        count: how many times this job has done so.
        me: how messages begin.

    Raises:
        UnavailableError: there is no such store, or it cannot be reached.
        TimeoutError: rank 0 has not told its text.
    """
    store = _store(me, deadline)
    key = f"ringreduce/rank 0/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}/{count}"
    try:
        if text is not None:
            store.set(key, text)
            return text
        pause_s = 1e-3
        while not store.check([key]):
            if deadline.expired():
                raise TimeoutError(
                    f"{me}: rank 0 has not written into torchrun's store at {_where()} where it listens within "
                    f"{deadline.timeout_s:g} s: its own error says why, or it does not call init()"
                )
            time.sleep(min(pause_s, deadline.remaining_s()))
            pause_s = min(2 * pause_s, 0.1)
        return bytes(store.get(key)).decode(errors="replace")
    except RuntimeError as error:  # torch's DistError
        if isinstance(error, TimeoutError):
            raise
        raise UnavailableError(f"{me}: torchrun's store at {_where()} has failed: {error}") from error


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
