"""One row of the table: which line is broken, how, and who must notice."""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One row.

    name: what is broken, for the command line.
    file: from the root of the repository.
    text: what occurs once in the file.
    replacement: what stands there instead.
    tests: who must notice. C++: files of tests/cpp without .cc, with :: and how a test case begins where the others of
        the file take seconds; Python: files in any room of tests/python.
    objects: C++, of a header that many files include: the only ones to compile with it, by their source's name.
    limit_s: where the mutation is noticed by a hang, for tests that are through in a fraction of it; 0: the tool's.
    """

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]
    objects: tuple[str, ...] = ()
    limit_s: float = 0

    @property
    def is_python(self) -> bool:
        """Whether the file is Python."""
        return self.file.endswith(".py")

    @property
    def room(self) -> str:
        """The folder of csrc, or "python"."""
        return "python" if self.is_python else self.file.split("/")[1]
