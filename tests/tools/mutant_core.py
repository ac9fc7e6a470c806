"""C++ mutants: rr_tests once more, with the few objects that a broken line changes.

The mutant has the objects of its own tests only, and from the library what those need. So of the objects that depend on
a broken header only these are compiled. Everything else is the build folder's.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from mutant import ROOT, Ended, Unfit, Verdict, broken, ended
from mutations import Mutation

PROGRAM = "tests/cpp/rr_tests"
COMPILE_LIMIT_S = 300
FAKES = ("libfakecuda.so", "fake_nccl")
"""What the tests load, by its place in the build folder (tests/cpp/fakes/fake_library.h)."""
DOCTEST_OPTIONS = ("--abort-after=1", "--no-version")
MOST_GIB = 8


class Core:
    """See Kind. build: a folder that CMake and Ninja have filled, with RR_TESTS=ON."""

    def __init__(self, build: Path, folder: Path) -> None:
        self._build = build.resolve()
        self._folder = folder
        if not (self._build / PROGRAM).exists():
            raise Unfit(f"{build} has no {PROGRAM}: run `make build` first, or name another folder with --build")
        settings = dict(re.findall(r"^(\w+):\w+=(.*)$", (self._build / "CMakeCache.txt").read_text(), re.MULTILINE))
        if Path(settings["CMAKE_HOME_DIRECTORY"]).resolve() != ROOT:
            raise Unfit(f"{build} is of another checkout: {settings['CMAKE_HOME_DIRECTORY']}")
        self._ninja = settings["CMAKE_MAKE_PROGRAM"]
        self._compiler = settings["CMAKE_CXX_COMPILER"]
        self._sources = f"{settings['CMAKE_HOME_DIRECTORY']}/csrc"
        *compilations, link = map(self._words, self._ask("-t", "commands", PROGRAM).splitlines())
        self._link = link
        self._compile = {words[words.index("-o") + 1]: words for words in compilations if "-c" in words}
        self._depend = self._dependencies()
        self._check_fresh()

    def make(self, row: Mutation, folder: Path) -> Path:
        """See Kind."""
        content = broken(row)
        shutil.copytree(ROOT / "csrc", folder / "csrc")
        (folder / row.file).write_text(content)
        replaced = {name: folder / f"{number}.o" for number, name in enumerate(self._objects(row, folder))}
        for name, path in replaced.items():
            self._run(row, self._compilation(name, folder, path))
        mutant = folder / PROGRAM
        mutant.parent.mkdir(parents=True)
        for name in FAKES:
            (folder / name).symlink_to(self._build / name)
        self._run(row, self._linking(row.tests, mutant, replaced))
        return mutant

    def test(self, mutant: Path | None, row: Mutation, limit_s: float) -> Verdict:
        """See Kind."""
        text = ""
        for test in row.tests:
            name, _, case = test.partition("::")
            # doctest takes a comma for the beginning of another pattern, and any character for a question mark.
            filters = [f"--source-file=*/{name}.cc", f"--test-case={case.replace(',', '?')}*"]
            program = mutant or self._build / PROGRAM
            done = ended([program, *filters, *DOCTEST_OPTIONS], limit_s, cwd=self._folder, gib=MOST_GIB)
            text = _summary(done, limit_s)
            if done.status != 0:
                return Verdict(True, text)
            if not re.search(r"test cases: +[1-9]\d* \|", done.output):
                raise Unfit(f"{row.name}: {test}: no test has run\n{done.output[-1000:]}")
        return Verdict(False, text)

    def _ask(self, *arguments: str) -> str:
        command = [self._ninja, "-C", str(self._build), "--quiet", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def _words(self, line: str) -> list[str]:
        """A command of Ninja without what runs the compiler (ccache), and without the shell's `: &&` around a link."""
        words = shlex.split(line)
        begin = words.index(self._compiler) if self._compiler in words else len(words)
        return [word for word in words[begin:] if word not in ("&&", ":")]

    def _dependencies(self) -> dict[str, set[str]]:
        """By file below the root: the objects that were compiled with it."""
        found: dict[str, set[str]] = {}
        target = ""
        for line in self._ask("-t", "deps").splitlines():
            if line and not line.startswith(" "):
                target = line.split(":")[0]
            elif target in self._compile:
                path = os.path.relpath(os.path.normpath(self._build / line.strip()), ROOT)
                found.setdefault(path, set()).add(target)
        return found

    def _check_fresh(self) -> None:
        """Raises Unfit where a file of the checkout is newer than an object that was compiled with it."""
        for file, objects in self._depend.items():
            oldest = min((self._build / name).stat().st_mtime for name in objects)
            if file.startswith(("csrc/", "tests/")) and (ROOT / file).stat().st_mtime > oldest:
                raise Unfit(f"{file} is newer than {self._build}: run `make build` first")

    def _objects(self, row: Mutation, folder: Path) -> list[str]:
        """What to compile: of the objects that depend on the file those that the mutant consists of."""
        depend = self._depend.get(row.file, set())
        if row.objects:
            wanted = set(row.objects)
        elif row.file.endswith(".cc"):
            wanted = {Path(row.file).name}
        else:
            done = self._run(row, [*self._linking(row.tests, folder / "unchanged", {}), "-Wl,--trace"])
            wanted = set(re.findall(r"([\w.]+\.cc)\.o\b", done.output))
        chosen = sorted(name for name in depend if Path(name).name.removesuffix(".o") in wanted and self._is_part(name))
        if not chosen or (row.objects and len(chosen) < len(wanted)):
            raise Unfit(f"{row.name}: of {', '.join(sorted(wanted))} only {chosen} depend on {row.file}")
        return chosen

    def _is_part(self, name: str) -> bool:
        """Whether an object belongs to the library or to the tests, not to one of the fakes that they load."""
        return name in self._link or "/ringreduce_core.dir/" in name

    def _compilation(self, name: str, folder: Path, output: Path) -> list[str]:
        words = [word.replace(self._sources, f"{folder}/csrc") for word in self._compile[name]]
        for option in ("-MT", "-MF", "-o"):
            at = words.index(option)
            del words[at : at + 2]
        kept = [word for word in words if word not in ("-MD", "-Werror") and not re.fullmatch(r"-O\d", word)]
        return [*kept, "-w", "-O1", "-o", str(output)]

    def _linking(self, tests: tuple[str, ...], output: Path, replaced: dict[str, Path]) -> list[str]:
        """The link of rr_tests, with the named tests only, and with other objects in the place of some.

        Those come first: of an inline function the linker takes the first definition.
        """
        ours = {f"{test.partition('::')[0]}.cc.o" for test in tests}
        if missing := ours - {Path(word).name for word in self._link}:
            raise Unfit(f"{PROGRAM} has no {', '.join(sorted(missing))}")
        others = {word for word in self._link if word.endswith("_test.cc.o") and Path(word).name not in ours}
        words = [word for word in self._link if word not in others and word not in replaced]
        words[words.index("-o") + 1] = str(output)
        first = next(at for at, word in enumerate(words) if word.endswith(".o"))
        return [*words[:first], *map(str, replaced.values()), *words[first:]]

    def _run(self, row: Mutation, command: list[str]) -> Ended:
        done = ended(command, COMPILE_LIMIT_S, cwd=self._build)
        if done.status != 0:
            raise Unfit(f"{row.name}: {shlex.join(command)}: status {done.status}\n{done.output[-4000:]}")
        return done


def _summary(done: Ended, limit_s: float) -> str:
    """How a program of doctest ended: what happened, and the case in which it did."""
    cases = re.findall(r"^TEST CASE: +(.*)", done.output, re.MULTILINE)
    return "; ".join(filter(None, [done.failure(limit_s), *cases[:1]]))
