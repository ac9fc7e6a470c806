"""One round of a selector whose keys hold what to call."""

from __future__ import annotations

import selectors


def handle(selector: selectors.BaseSelector, timeout_s: float | None = None) -> bool:
    """Waits for events and calls what handles them; False where none has come in time. None: no limit."""
    events = selector.select(timeout_s)
    for key, _ in events:
        if selector.get_map().get(key.fd) is key:  # an earlier event of this round may have closed it
            key.data()
    return bool(events)
