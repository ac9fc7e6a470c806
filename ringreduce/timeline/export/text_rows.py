"""Many lines of one form as text, by arrays: a column of bytes after the other, without a loop over the lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_FILL = 0
"""The byte that stands where a line's field is shorter than the column. It is left out of the text."""
_DIGITS = 4
_GROUPS = np.frombuffer(b"".join(b"%04d" % n for n in range(10**_DIGITS)), np.uint8).reshape(-1, _DIGITS)
_POWERS = np.array([10**digits for digits in range(1, 20)], np.uint64)


def joined(count: int, *columns: bytes | np.ndarray) -> bytes:
    """The text of `count` lines, one behind the other.

    Args:
        columns: bytes that each line has, or a column of Texts, whole() or thousandths().
    """
    widths = [len(column) if isinstance(column, bytes) else column.shape[1] for column in columns]
    lines = np.empty((count, sum(widths)), np.uint8)
    begin = 0
    for column, width in zip(columns, widths, strict=True):
        lines[:, begin : begin + width] = np.frombuffer(column, np.uint8) if isinstance(column, bytes) else column
        begin += width
    flat = lines.reshape(-1)
    text: bytes = flat[flat != _FILL].tobytes()
    return text


class Texts:
    """Texts of which each line has one, for several columns. No text has a NUL."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts] or [b""]
        self._lengths = np.array(list(map(len, encoded)))
        width = max(1, int(self._lengths.max()))
        padded = b"".join(text.ljust(width, b"\0") for text in encoded)
        self._padded = np.frombuffer(padded, np.uint8).reshape(-1, width)

    def column(self, index: np.ndarray) -> np.ndarray:
        """texts[index] of each line, as wide as the longest of them."""
        width = int(self._lengths[index].max(initial=1))
        column: np.ndarray = self._padded[:, :width][index]
        return column


def whole(values: np.ndarray) -> np.ndarray:
    """Whole numbers, int64 or uint64, in decimal."""
    return np.concatenate([*_sign(values), _decimal(_magnitude(values))], axis=1)


def thousandths(values: np.ndarray) -> np.ndarray:
    """Whole numbers of thousandths, int64 or uint64, with three decimals: 1234567 as 1234.567."""
    size = _magnitude(values)
    units = size // 1000
    point = np.full((len(values), 1), ord("."), np.uint8)
    return np.concatenate([*_sign(values), _decimal(units), point, _padded(size - units * 1000, 3)], axis=1)


def _magnitude(values: np.ndarray) -> np.ndarray:
    """uint64, which has that of the smallest int64, too."""
    magnitude: np.ndarray = np.abs(values).view(np.uint64)
    return magnitude


def _sign(values: np.ndarray) -> list[np.ndarray]:
    """The column of signs, where there is any."""
    negative = values < 0
    return [np.where(negative, ord("-"), _FILL).astype(np.uint8)[:, None]] if negative.any() else []


def _decimal(values: np.ndarray) -> np.ndarray:
    """Numbers that are not negative, without leading zeros."""
    count = 1 + np.searchsorted(_POWERS, values, side="right")
    width = int(count.max(initial=1))
    digits = _padded(values, width)
    digits[np.arange(width) < (width - count)[:, None]] = _FILL
    return digits


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    """Numbers that are not negative, with leading zeros, in `width` digits."""
    groups = []
    left = values
    for _ in range(-(-width // _DIGITS)):
        rest = left // len(_GROUPS)
        groups.append(_GROUPS[left - rest * len(_GROUPS)])
        left = rest
    return np.concatenate(groups[::-1], axis=1)[:, -width:]
