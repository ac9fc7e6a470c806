"""Python mutants: a copy of the package ringreduce, with the native module of the checkout."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from files_of_tests import path_of
from mutant import ROOT, Ended, Unfit, Verdict, broken, ended
from mutations import Mutation

PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", f"--rootdir={ROOT}", f"-c{ROOT / 'pyproject.toml'}")
MARK = "\n__import__('pathlib').Path({folder!r}, str(__import__('os').getpid())).touch()\n"
"""The end of the broken module: a file for each process that has imported it."""


class Python:
    """See Kind."""

    def __init__(self, folder: Path) -> None:
        self._unchanged = _copied(folder / "unchanged")

    def make(self, row: Mutation, folder: Path) -> Path:
        """See Kind."""
        content = broken(row)
        marks = folder / "importers"
        marks.mkdir(parents=True)
        _copied(folder)
        (folder / row.file).write_text(content + MARK.format(folder=str(marks)))
        return folder

    def test(self, mutant: Path | None, row: Mutation, limit_s: float) -> Verdict:
        """See Kind: pytest runs in the mutant's folder, which therefore comes first where it looks for the package."""
        folder = mutant or self._unchanged
        tests = [path_of(name) for name in row.tests]
        # The second variable: conftest.py is not to take what other mutants' tests have in /dev/shm for something left.
        environment = {"PYTHONPATH": str(folder), "PYTEST_XDIST_WORKER": row.name}
        done = ended([*PYTEST, *tests], limit_s, cwd=folder, env=environment)
        if done.status == 0 and not re.search(r"\b[1-9]\d* passed", done.output):
            raise Unfit(f"{row.name}: {', '.join(row.tests)}: no test has run\n{done.output[-1000:]}")
        # pytest itself, and the ranks that it starts.
        if mutant is not None and len(list((mutant / "importers").iterdir())) < 2:
            raise Unfit(f"{row.name}: no rank of {', '.join(row.tests)} imports {row.file}\n{done.output[-4000:]}")
        return Verdict(done.status != 0, _summary(done, limit_s))


def _copied(folder: Path) -> Path:
    """A folder with a copy of the package."""

    def ignored(_: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or name.endswith(".so")}

    shutil.copytree(ROOT / "ringreduce", folder / "ringreduce", ignore=ignored)
    for library in (ROOT / "ringreduce").glob("*.so"):
        (folder / "ringreduce" / library.name).symlink_to(library)
    return folder


def _summary(done: Ended, limit_s: float) -> str:
    """How pytest ended: the test that failed, and what happened."""
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.output, re.MULTILINE)
    error = re.findall(r"^E +(\w*(?:Error|Exception|assert)\b.*)", done.output, re.MULTILINE)
    text = [done.failure(limit_s), *[name.rsplit("/", 1)[-1] for name in failed[:1]], *error[-1:]]
    return "; ".join(filter(None, text))[:150]
