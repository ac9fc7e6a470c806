"""The comparison for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .verdict import FASTER, NEW_FAILS, SAME, SLOWER, UNKNOWN, Judgement

BLIND = 1.10
"""A spread above this is marked: what is smaller cannot be seen there."""
HEADINGS = ("case", "old, us", "new, us", "new / old", "spread", "rounds", "verdict")


def text(found: Mapping[str, Judgement]) -> str:
    """All cases, what to know about them, and last the verdict."""
    lines = [HEADINGS, *(_cells(name, one) for name, one in found.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    rows = ["  ".join(_aligned(line, widths)) for line in lines]
    return "\n".join([*rows, *_notes(found), last_line(found)])


def last_line(found: Mapping[str, Judgement]) -> str:
    """ "no difference", or what differs."""
    if not _is_judged(found):
        return "nothing was judged"
    said = []
    for verdict in (SLOWER, NEW_FAILS, FASTER):
        if names := [f"{name}{_change(one)}" for name, one in found.items() if one.verdict == verdict]:
            said.append(f"{verdict}: {', '.join(names)}")
    return "; ".join(said) or SAME


def status(found: Mapping[str, Judgement]) -> int:
    """The exit status: 1 where the new build is slower or fails, or nothing was judged."""
    bad = any(one.verdict in (SLOWER, NEW_FAILS) for one in found.values())
    return 1 if bad or not _is_judged(found) else 0


def _is_judged(found: Mapping[str, Judgement]) -> bool:
    return any(one.verdict != UNKNOWN for one in found.values())


def _is_noisy(one: Judgement) -> bool:
    return one.spread is not None and one.spread > BLIND


def _cells(name: str, one: Judgement) -> tuple[str, ...]:
    if one.old_us is None or one.new_us is None:
        return (name, "-", "-", "-", "-", str(one.rounds), one.verdict)
    figures = (_us(one.old_us), _us(one.new_us), f"{one.ratio:.3f}", f"{one.spread:.3f}", str(one.rounds))
    return (name, *figures, f"{one.verdict} (noisy)" if one.verdict == SAME and _is_noisy(one) else one.verdict)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The first and the last column to the left, the figures between them to the right."""
    name, *figures, verdict = line
    return [name.ljust(widths[0]), *map(str.rjust, figures, widths[1:-1]), verdict]


def _notes(found: Mapping[str, Judgement]) -> list[str]:
    notes = ["", "spread: the factor within which three in four pairs of old runs of the same round lie"]
    if noisy := sum(map(_is_noisy, found.values())):
        notes.append(f"noisy: a spread above {BLIND - 1:.0%}, so that a change of that size is not seen: {noisy} cases")
    if unknown := [name for name, one in found.items() if one.verdict == UNKNOWN]:
        notes.append(f"{UNKNOWN}, for want of rounds in which both builds gave figures: {', '.join(unknown)}")
    return notes


def _change(one: Judgement) -> str:
    return "" if one.ratio is None else f" ({one.ratio:.2f}x)"


def _us(time: float) -> str:
    return f"{time:.2f}" if time < 10 else f"{time:.1f}" if time < 1000 else f"{time:.0f}"
