"""Builds ringreduce._core and ringreduce/_tensorflow.so by CMake; all else about the package is in pyproject.toml.

CMake options come from the environment: RR_CMAKE_ARGS="-DRR_WERROR=ON -DRR_TESTS=ON". Every build works in
build/cmake, so the next one, of whatever kind, compiles only what changed. CMAKE_BUILD_PARALLEL_LEVEL says how many
files are compiled at once.
"""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def tool(name: str, directory: str) -> str:
    """Path of a build tool: the one from its Python package (a build requirement), else whatever PATH has."""
    try:
        return str(Path(getattr(__import__(name), directory)) / name)
    except (ImportError, AttributeError):
        return name


def configured_for() -> str:
    """What decides about a build and is read by CMake once, or kept by it: where we are, compilers, flags, options."""
    environ = os.environ
    names = {"CXX", "CXXFLAGS", "LDFLAGS", "CUDACXX", *(name for name in environ if name.startswith("CMAKE_"))}
    values = [f"{name}={environ.get(name, '')}" for name in sorted(names - {"CMAKE_BUILD_PARALLEL_LEVEL"})]
    compiler, *_ = [*shlex.split(environ.get("CXX", "")), "c++"]
    # These change nothing in the module. They stay, so that `pip install .` and `make build` share what they compile.
    shared = re.compile(r"-DRR_(WERROR|TESTS|GPU_CHECK)\b")
    options = [word for word in shlex.split(environ.get("RR_CMAKE_ARGS", "")) if not shared.match(word)]
    tools = [shutil.which(name) for name in (compiler, "nvcc")]
    return "\n".join([f"source={ROOT}", *values, f"tools={tools}", f"options={options}", ""])


@contextmanager
def fresh_unless_same(tree: Path) -> Iterator[None]:
    """A build in tree: CMake begins anew unless the last one was for the same, and ended well.

    Objects stay: ninja knows which of them have been compiled by the same command.
    """
    record = tree / "configured_for.txt"
    wanted = configured_for()
    if not record.exists() or record.read_text() != wanted:
        (tree / "CMakeCache.txt").unlink(missing_ok=True)
        for compilers in tree.glob("CMakeFiles/[0-9]*"):  # a folder for each version of CMake
            shutil.rmtree(compilers)
    record.unlink(missing_ok=True)
    yield
    record.write_text(wanted)


def jobs() -> int:
    """How many files are compiled at once: one on each CPU that we may use, and each has a GiB of memory."""
    limits = runpy.run_path(str(ROOT / "ringreduce" / "launch" / "quota.py"))
    memory = min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), limits["memory_left"]())
    return max(1, int(min(len(os.sched_getaffinity(0)), limits["cpu_quota"](), memory / 2**30)))


class CMakeExtension(Extension):
    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        """TensorFlow's operators are no Python module: their file has no Python version in its name."""
        *folders, name = fullname.split(".")
        return os.path.join(*folders, name + ".so") if name == "_tensorflow" else super().get_ext_filename(fullname)

    def build_extension(self, ext: Extension) -> None:
        if ext.name != "ringreduce._core":
            return  # built with it, into the same folder
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        tree = ROOT / "build" / "cmake"
        cmake = tool("cmake", "CMAKE_BIN_DIR")
        configure = [
            *(cmake, "-S", str(ROOT), "-B", str(tree), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja', 'BIN_DIR')}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DPython_INCLUDE_DIR={sysconfig.get_path('include')}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DRR_MODULE_DIR={output.parent}",
            f"-DRR_MODULE_NAME={output.name}",
            *shlex.split(os.environ.get("RR_CMAKE_ARGS", "")),
        ]
        parallel = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(jobs())
        with fresh_unless_same(tree):
            subprocess.run(configure, check=True)
            subprocess.run([cmake, "--build", str(tree), "--parallel", parallel], check=True)


class BuildPython(build_py):
    """Collects the package afresh, and puts a .pth file beside it, which Python reads when it starts.

    RINGREDUCE_AS_HOROVOD works by that file. An editable installation has its own, with the path of this checkout.
    """

    NAME = "ringreduce-as-horovod.pth"
    LINE = 'import os, sys; os.environ.get("RINGREDUCE_AS_HOROVOD", "0") in ("", "0") or sys.path.insert(0, {})\n'
    INSTALLED = 'os.path.join(sitedir, "ringreduce", "compat", "path")'
    EDITABLE = ascii(str(ROOT / "ringreduce" / "compat" / "path"))

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            wheel = self.get_finalized_command("install").install_lib
            Path(wheel, self.NAME).write_text(self.LINE.format(self.EDITABLE))
            return
        self.remove_earlier_files()
        super().run()
        Path(self.build_lib, self.NAME).write_text(self.LINE.format(self.INSTALLED))

    def remove_earlier_files(self) -> None:
        """Else the wheel would have modules that the sources have no more, or those of a build that was cut off."""
        build = self.get_finalized_command("build")
        package = Path(self.build_lib, "ringreduce")
        for folder in (package, *Path(build.build_base).glob("bdist.*")):
            if folder.exists() and not folder.samefile(ROOT / "ringreduce"):
                shutil.rmtree(folder)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        files = super().get_outputs(include_bytecode)
        return files if self.editable_mode else [*files, os.path.join(self.build_lib, self.NAME)]


setup(
    ext_modules=[CMakeExtension("ringreduce._core"), CMakeExtension("ringreduce._tensorflow")],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildPython},
)
