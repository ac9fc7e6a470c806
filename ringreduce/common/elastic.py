"""What is reserved for elastic training: each framework's names of it exist, and say that it does not exist yet."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from ringreduce.errors import UnavailableError


class Reserved:
    """Base of the reserved classes. Raises UnavailableError when instantiated."""

    instead: ClassVar[str]
    """What does in the meantime, in the framework's words."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        unavailable(type(self).__name__, self.instead)


def unavailable(name: str, instead: str) -> NoReturn:
    """Raises UnavailableError for a name of hvd.elastic."""
    raise UnavailableError(f"hvd.elastic.{name}: elastic training does not exist yet. Without it: {instead}")
