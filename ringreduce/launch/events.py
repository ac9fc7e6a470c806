"""One round of a selector whose keys hold what to call."""

from __future__ import annotations

import selectors

from ringreduce.job.deadline import LONGEST_S


def handle(selector: selectors.BaseSelector, timeout_s: float | None = None) -> bool:
    """Waits for events and calls what handles them; False where none has come in time.

    timeout_s: None is no limit. A longer time than LONGEST_S counts as that: poll() takes no more, and who waits for so
        long waits again for what is left.
    """
    events = selector.select(None if timeout_s is None else min(timeout_s, LONGEST_S))
    for key, _ in events:
        if selector.get_map().get(key.fd) is key:  # an earlier event of this round may have closed it
            key.data()
    return bool(events)
