"""Numbers as text, short: 0-3, 7."""

from __future__ import annotations

from collections.abc import Iterable


def ranges(numbers: Iterable[int]) -> str:
    """ "0-3, 7" of 0, 1, 2, 3, 7; "none" of nothing."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts) or "none"


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2, 7"."""
    every = list(ranks)
    return f"rank{'' if len(every) == 1 else 's'} {ranges(every)}"
