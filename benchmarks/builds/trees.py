"""The two builds: a copy of each commit's files below build/compare, compiled there. The checkout is only read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BUILD_S = 1800
CHECK_S = 60
WORKING = "working-tree"
IMPORTED = "import ringreduce, ringreduce._core as c; print(ringreduce.__file__); print(c.__file__)"


class TreeError(Exception):
    """A commit that does not exist, or a tree that does not build."""


@dataclass(frozen=True)
class Tree:
    """Files of a commit, or of the checkout as it stands."""

    name: str
    """The commit's short hash, or WORKING."""
    label: str
    """For people: with the commit's subject."""
    path: Path

    def environ(self, *more: Path) -> dict[str, str]:
        """This process's environment, with this tree's ringreduce and further folders first on Python's path."""
        given = filter(None, [os.environ.get("PYTHONPATH")])
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(self.path), *map(str, more), *given])}


def of_commit(root: Path, commit: str, folder: Path) -> Tree:
    """The commit's files in folder/HASH. Raises TreeError."""
    name = _git(root, "rev-parse", "--short=10", "--verify", f"{commit}^{{commit}}")
    label = f"{name} {_git(root, 'log', '-1', '--format=%s', name)}"
    path = folder / name
    if not path.exists():
        part = folder / f"{name}.part"  # what was interrupted must not look complete
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        archive = folder / f"{name}.tar"
        _git(root, "archive", "--format=tar", f"--output={archive.resolve()}", name)
        subprocess.run(["tar", "-xf", str(archive), "-C", str(part)], check=True)
        archive.unlink()
        part.rename(path)
    return Tree(name, label, path)


def of_checkout(root: Path, folder: Path) -> Tree:
    """The checkout's files, tracked or not ignored, in folder/working-tree. What an earlier copy built stays."""
    path = folder / WORKING
    path.mkdir(parents=True, exist_ok=True)
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    wanted = {Path(name) for name in filter(None, listed) if (root / name).is_file()}
    for name in wanted:
        copy(root / name, path / name)
    # Files that are gone from the checkout; ignored ones (the module, build/) are what was built here.
    record = path / ".copied"
    before = {Path(line) for line in record.read_text().splitlines()} if record.exists() else set()
    for name in before - wanted:
        (path / name).unlink(missing_ok=True)
    record.write_text("".join(f"{name}\n" for name in sorted(wanted)))
    return Tree(WORKING, f"working tree on {_git(root, 'log', '-1', '--format=%h %s')}", path)


def is_dirty(root: Path) -> bool:
    """Whether the checkout differs from its HEAD."""
    return bool(_git(root, "status", "--porcelain"))


def copy(source: Path, target: Path) -> None:
    """Copies a file, unless the target has the same bytes: ninja looks at the time of its last change."""
    if target.is_file() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def build(tree: Tree) -> None:
    """Compiles ringreduce._core in the tree, and makes sure that it is what Python imports. Raises TreeError."""
    built = tree.path / ".built"
    how = f"{sys.executable} {os.environ.get('RR_CMAKE_ARGS', '')}"
    if tree.name == WORKING or not built.exists() or built.read_text() != how:
        environ = dict(os.environ)
        if ccache := shutil.which("ccache"):  # commits before the option RR_CCACHE share what was compiled, too
            environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", ccache)
            environ |= {"CCACHE_BASEDIR": str(tree.path), "CCACHE_NOHASHDIR": "1"}
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        done = subprocess.run(
            command, cwd=tree.path, env=environ, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
        if done.returncode != 0:
            raise TreeError(f"{tree.label} does not build:\n{(done.stdout + done.stderr)[-4000:]}")
        built.write_text(how)
    check(tree)


def check(tree: Tree) -> None:
    """Raises TreeError where Python would import another ringreduce, or none."""
    command = [sys.executable, "-c", IMPORTED]
    environ = tree.environ()
    done = subprocess.run(
        command, cwd=tree.path, env=environ, capture_output=True, text=True, timeout=CHECK_S, check=False
    )
    found = [Path(line).resolve() for line in done.stdout.splitlines()]
    if done.returncode != 0 or not all(tree.path.resolve() in path.parents for path in found):
        raise TreeError(f"{tree.path} is not what Python imports:\n{done.stdout}{done.stderr}")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TreeError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.rstrip("\n")
