"""Stand-ins for a native group that is not there, so that the fast path of a call needs no check.

A process set's `group` is either a native group or one of these; touching one raises the error that says why.
"""

from __future__ import annotations

from typing import NoReturn

from ringreduce.errors import Error


class AbsentGroup:
    """Raises `error(text)` on every use; "{call}" in the text becomes the collective's name, such as Allreduce."""

    __slots__ = ("_error", "_text")

    def __init__(self, error: type[Error], text: str) -> None:
        self._error = error
        self._text = text

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # a protocol probe (copy, pickle, inspect), not a call
            raise AttributeError(attribute)
        raise self._error(self._text.format(call=attribute.removesuffix("_async").capitalize()))
