"""How the report writes times, bytes, shares and operations. Text from a file is made harmless for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringreduce.timeline.job import Job

MOST_OF_A_NAME = 48
MOST_OF_A_WARNING = 500


def seconds(ns: float) -> str:
    """ "810 us", "12.3 ms", "4.1 s" of a time in ns."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= 0.9995 * factor:
            return f"{_figures(ns / factor)} {unit}"
    return f"{ns:.0f} ns"


def nbytes(count: float) -> str:
    """ "4.2 MB"; decimal units, as in GB/s."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * factor:
            return f"{_figures(count / factor)} {unit}"
    return f"{count:.0f} B"


def rate(bytes_per_s: float) -> str:
    """ "4.2 MB/s"."""
    return f"{nbytes(bytes_per_s)}/s"


def percent(share: float) -> str:
    """ "83 %", "2.1 %"."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def printable(text: str, most: int = MOST_OF_A_NAME) -> str:
    """Without what moves a cursor, and not longer than `most`, which is at least 3.

    What is longer loses its middle: names of layers differ at their ends as often as at their beginnings.
    """
    if len(text) > most:
        of_end = (most - 3) // 2
        text = f"{text[: most - 3 - of_end]}...{text[len(text) - of_end :]}"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def warning(text: str) -> str:
    """One of a job's warnings, which may have names of files in it."""
    return printable(text, MOST_OF_A_WARNING)


def label(kind: str, name: str, most: int = MOST_OF_A_NAME) -> str:
    """ "allreduce 'loss'", "allreduce (unnamed)"."""
    return f"{printable(kind, 20)} '{printable(name, most)}'" if name else f"{printable(kind, 20)} (unnamed)"


def operation(job: Job, index: int) -> str:
    """ "allreduce 'loss' #12" of one operation of the job."""
    row = job.operations[index]
    name = job.names[row["name"]]
    kind = printable(job.kinds[row["kind"]], 20)
    number = int(row["number"])  # of a named one the upper half is its epoch (joins and deadlock verdicts so far)
    return f"{kind} '{printable(name)}' #{number & 0xFFFFFFFF}" if name else f"{kind} #{number}"


def counted(number: int, thing: str) -> str:
    """ "1 rank", "8 ranks"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _figures(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
