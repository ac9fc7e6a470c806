"""The sizes that depend on the machine."""

from __future__ import annotations

from dataclasses import dataclass

from ringreduce import state


@dataclass(frozen=True)
class Sizes:
    """Of the staging chunk, and of the largest eager message, in bytes. The defaults of csrc/measure/tuning.h."""

    chunk_nbytes: int = 256 << 10
    eager_nbytes: int = 8 << 10

    def set(self) -> None:
        """Puts them in force. Collective."""
        state.require().context.set_sizes(self.chunk_nbytes, self.eager_nbytes)
