"""setup.py and CMakeLists.txt: what a build takes over from the one before and what it leaves out; nothing is compiled.

setup.py runs as it is, in a small source tree whose CMakeLists.txt writes what CMake was told in place of the modules.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from processes import completed
from ranks import clean_environment

ROOT = Path(__file__).resolve().parents[3]

TOY = """
cmake_minimum_required(VERSION 3.20)
project(toy LANGUAGES NONE)
set(FLAGS "$ENV{CXXFLAGS}" CACHE STRING "Read once, as CMake does where a language is enabled")
set(words "flags=${FLAGS} RR_CUDA=${RR_CUDA} RR_TESTS=${RR_TESTS} mark=${MARK}")
file(WRITE ${RR_MODULE_DIR}/${RR_MODULE_NAME} "${words}")
file(WRITE ${RR_MODULE_DIR}/_tensorflow.so "")
file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/_core.dir/one.o "")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the real setup.py, in a folder with a space in its name."""
    root = tmp_path / "the sources"
    (root / "ringreduce" / "launch").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "ringreduce/launch/quota.py"):
        shutil.copy(ROOT / name, root / name)
    for name in ("__init__.py", "kept.py", "launch/__init__.py"):
        (root / "ringreduce" / name).touch()
    (root / "CMakeLists.txt").write_text(TOY)
    return root


def environment(**variables: str) -> dict[str, str]:
    """This process's, with these of the variables that decide about builds."""
    deciding = {"CXX", "CXXFLAGS", "LDFLAGS", "CUDACXX", "RR_CMAKE_ARGS", "PYTHONPATH"}
    environ = {name: text for name, text in clean_environment().items() if name not in deciding}
    return {name: text for name, text in environ.items() if not name.startswith("CMAKE_")} | variables


def built(tree: Path, **variables: str) -> str:
    """What CMake was told in a build in place."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    completed(command, cwd=tree, env=environment(**variables), check=True)
    (module,) = tree.glob("ringreduce/_core.*.so")
    return module.read_text()


def mark(tree: Path) -> None:
    """Writes into CMake's cache what only a build that keeps the cache will tell."""
    with (tree / "build" / "cmake" / "CMakeCache.txt").open("a") as cache:
        cache.write("MARK:STRING=kept\n")


def wheel_of(tree: Path, hook: str, **variables: str) -> zipfile.ZipFile:
    """The wheel that pip gets from one of the functions of setuptools.build_meta."""
    out = tree.parent / "wheels"
    out.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.{hook}({str(out)!r}))"
    done = completed([sys.executable, "-c", code], cwd=tree, env=environment(**variables), check=True)
    return zipfile.ZipFile(out / done.stdout.splitlines()[-1])


# --- one build after another ------------------------------------------------------------------------------------------


def test_flags_and_options_of_an_earlier_build_do_not_stay(tree: Path) -> None:
    assert "flags=-march=native " in built(tree, CXXFLAGS="-march=native")
    (tree / "build/cmake/CMakeFiles/4.0.0").mkdir()
    assert "flags= " in built(tree)
    assert not (tree / "build/cmake/CMakeFiles/4.0.0").exists(), "what CMake knows about another compiler"
    assert (tree / "build/cmake/CMakeFiles/_core.dir/one.o").exists(), "ninja knows whether it still fits"
    assert "RR_CUDA=OFF" in built(tree, RR_CMAKE_ARGS="-DRR_CUDA=OFF")
    assert "RR_CUDA= " in built(tree)


def test_what_changes_nothing_in_the_module_stays(tree: Path) -> None:
    """`make build`, `pip install .` and `make demo` in turns keep one configuration."""
    assert "RR_TESTS=ON" in built(tree, RR_CMAKE_ARGS="-DRR_WERROR=ON -DRR_TESTS=ON")
    mark(tree)
    assert "RR_TESTS=ON mark=kept" in built(tree, CMAKE_BUILD_PARALLEL_LEVEL="1")
    assert "mark=kept" in built(tree, RR_CMAKE_ARGS="-DRR_WERROR:BOOL=ON -DRR_TESTS=ON")


def test_options_of_a_build_that_failed_do_not_stay(tree: Path) -> None:
    """Those that stay otherwise, too: -DRR_TESTS=ON ends in an error without doctest, -DRR_WERROR=ON at a warning."""
    (tree / "CMakeLists.txt").write_text(f"{TOY}if(RR_TESTS)\n  message(FATAL_ERROR none)\nendif()\n")
    with pytest.raises(AssertionError, match="ended with status 1"):
        built(tree, RR_CMAKE_ARGS="-DRR_TESTS=ON")
    assert "RR_TESTS= " in built(tree)


def test_another_compiler_of_the_same_name_begins_anew(tree: Path, tmp_path: Path) -> None:
    """`module load gcc` puts another c++ first in PATH."""
    built(tree)
    mark(tree)
    program(tmp_path / "bin" / "c++", "exit 0")
    assert "mark=kept" not in built(tree, PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_a_moved_or_copied_checkout_builds(tree: Path) -> None:
    built(tree)
    moved = tree.rename(tree.with_name("moved"))
    assert "flags=" in built(moved)
    shutil.copytree(moved, tree)
    assert "flags=" in built(tree)


def test_a_wheel_has_no_module_that_the_sources_have_no_more(tree: Path) -> None:
    gone = tree / "ringreduce" / "gone.py"
    gone.touch()
    assert "ringreduce/gone.py" in wheel_of(tree, "build_wheel").namelist()
    gone.unlink()
    cut_off = next(tree.glob("build/lib.*")).name.replace("lib.", "bdist.").rpartition("-cpython")[0]
    (tree / "build" / cut_off / "wheel").mkdir(parents=True)
    (tree / "build" / cut_off / "wheel" / "cut_off.py").touch()
    names = wheel_of(tree, "build_wheel").namelist()
    assert "ringreduce/kept.py" in names
    assert "ringreduce/_tensorflow.so" in names
    assert not {"ringreduce/gone.py", "cut_off.py"} & set(names)


def test_an_editable_installation_has_its_file_for_the_name_horovod(tree: Path) -> None:
    """tests/python/horovod/test_compat.py runs it."""
    wheel = wheel_of(tree, "build_editable")
    line = wheel.read("ringreduce-as-horovod.pth").decode()
    (record,) = (name for name in wheel.namelist() if name.endswith(".dist-info/RECORD"))
    assert line.endswith(f"sys.path.insert(0, {str(tree / 'ringreduce' / 'compat' / 'path')!r})\n")
    assert "ringreduce-as-horovod.pth" in wheel.read(record).decode(), "pip removes it"


# --- how many files are compiled at once ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpus", "quota", "limit", "jobs"),
    [(4, "max", "max", 4), (4, "250000", "max", 2), (4, "50000", "max", 1), (4, "max", "3221225472", 3)],
)
def test_jobs_fit_on_cpus_and_into_memory(
    cpus: int, quota: str, limit: str, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 / {tmp_path} rw,relatime shared:9 - cgroup2 none rw\n")
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 1 << 24, "SC_PAGE_SIZE": 4096}[name])
    setup = functions_of_setup()
    run_path = setup["runpy"].run_path

    def limits(path: str) -> dict[str, Any]:
        found = run_path(path)
        return {name: lambda read=found[name]: read(tmp_path) for name in ("cpu_quota", "memory_left")}

    monkeypatch.setattr(setup["runpy"], "run_path", limits)
    assert setup["jobs"]() == jobs


def test_jobs_can_be_set(tree: Path, tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = f'echo "$@" >> {shlex.quote(str(said))}; mkdir -p build/cmake'
    program(tmp_path / "bin" / "cmake", script)
    # A package cmake of its own, whose programs setup.py takes.
    (tmp_path / "cmake.py").write_text(f"CMAKE_BIN_DIR = {str(tmp_path / 'bin')!r}\n")
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    for level in ("7", ""):
        environ = environment(PYTHONPATH=str(tmp_path), CMAKE_BUILD_PARALLEL_LEVEL=level)
        completed(command, cwd=tree, env=environ)
    first, second = [line.split()[-1] for line in said.read_text().splitlines() if "--build" in line]
    assert first == "7"
    assert 1 <= int(second) <= len(os.sched_getaffinity(0))


def functions_of_setup() -> dict[str, Any]:
    """Those of setup.py, without a call of setup()."""
    names: dict[str, Any] = {"__file__": str(ROOT / "setup.py")}
    exec((ROOT / "setup.py").read_text().replace("\nsetup(\n", "\ndict(\n"), names)
    return names


# --- CMakeLists.txt: ccache and flags, configured and not built -------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "launcher", "words"),
    [
        ('exec "$@"', True, ""),
        ("echo ccache: error: Failed to create directory >&2; exit 1", False, "Failed to create directory"),
    ],
    ids=["works", "cannot write"],
)
def test_ccache_is_taken_where_it_works(script: str, launcher: bool, words: str, tmp_path: Path) -> None:
    ccache = program(tmp_path / "bin" / "ccache", script)
    said = configured(tmp_path, f"-DRR_CCACHE_PROGRAM={ccache}")
    assert (str(ccache) in (tmp_path / "tree" / "build.ninja").read_text()) is launcher
    assert ("-- ccache: off" in said) is not launcher
    assert words in said


@pytest.mark.parametrize("flags", ["-O2 -ffast-math", "-ffinite-math-only"])
def test_flags_that_change_results_are_refused(flags: str, tmp_path: Path) -> None:
    said = configured(tmp_path, CXXFLAGS=flags, status=1)
    assert f'out of CXXFLAGS, CXX and RR_CMAKE_ARGS. CXXFLAGS here: "{flags}"' in " ".join(said.split())


def configured(tmp_path: Path, *options: str, status: int = 0, **variables: str) -> str:
    """What CMake says when it configures the project, without Python and CUDA."""
    binaries = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=f"{binaries}{os.pathsep}{os.environ['PATH']}")
    ninja = shutil.which("ninja", path=f"{binaries}{os.pathsep}{os.environ['PATH']}")
    assert cmake
    done = completed(
        [
            *(cmake, "-S", ROOT, "-B", tmp_path / "tree", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"),
            *("-DRR_PYTHON=OFF", "-DRR_CUDA=OFF", *options),
        ],
        env=environment(**variables),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path
